"""Dynamo's file of log levels: whether Dynamo could read it, which else panics as it is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError

VARIABLE = "DYN_LOGGING_CONFIG_PATH"


def check_log_config(environment: Mapping[str, str]) -> None:
    """Refuse a file that is not there, or is none of log levels; no file is fine.

    Raises:
        ConfigError: names the variable, and what is wrong with the file.
    """
    if not (name := environment.get(VARIABLE)):
        return
    path = _found(Path(name))
    if path is None:
        raise ConfigError(f"{VARIABLE}: there is no file {name}; give one, or leave the variable out")
    try:
        tomllib = importlib.import_module("tomllib")
    except ImportError:
        # Python 3.10 has no reader of TOML: what is wrong with the file Dynamo says there, at more length.
        return
    try:
        levels: dict[str, Any] = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{VARIABLE}: {path} cannot be read as TOML: {error}") from error
    filters = levels.get("log_filters", {})
    if not isinstance(levels.get("log_level", ""), str):
        raise ConfigError(f'{VARIABLE}: log_level of {path} should be a text, such as "info"')
    if not isinstance(filters, dict) or not all(isinstance(level, str) for level in filters.values()):
        raise ConfigError(
            f'{VARIABLE}: log_filters of {path} should be a table of texts, such as "dynamo_llm" = "warn"'
        )


def _found(path: Path) -> Path | None:
    """The file as Dynamo finds it: a relative one also in the directories above."""
    places = [path] if path.is_absolute() else [above / path for above in (Path.cwd(), *Path.cwd().parents)]
    return next((place for place in places if place.is_file()), None)
