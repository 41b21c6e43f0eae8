"""A model's own wishes for how its answers are decoded: ``generation_config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import read_json

NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The keys that have to be numbers."""


def read_generation_config(model_dir: Path) -> dict[str, Any]:
    """What the file says, without keys that say nothing; empty if there is none.

    Raises:
        ConfigError: it cannot be read, or has something else where a number belongs; names ``model`` and the file.
    """
    file = model_dir / "generation_config.json"
    if not file.exists():
        return {}
    said = {key: value for key, value in read_json(file).items() if value is not None}
    for key in NUMBERS:
        value = said.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"model: {key} in {file} should be a number, not {value!r}")
    return said
