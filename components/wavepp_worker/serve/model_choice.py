"""Which model a service runs, and by which name clients ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.settings import ServiceSettings

DEMO_MODEL = "<default model>"
"""Stands for the demo model's directory until that exists."""
DEMO_NAME = "SmolLM2-135M-Instruct"


def add_model(service: Service, flags: dict[str, Any], settings: Mapping[str, ServiceSettings]) -> str | None:
    """Settle ``model`` and, where the service takes it, ``served_model_name`` in ``flags``; returns the latter.

    Args:
        flags: the service's, by key; changed.
        settings: every service's, of which one may name a model for all.

    Raises:
        ConfigError: the directory holds no model.
    """

    def given(key: str) -> Any:
        return next((own.flags[key] for own in settings.values() if own.flags.get(key) is not None), None)

    model = flags.get("model") or given("model")
    if model is None:
        flags["model"], name = DEMO_MODEL, DEMO_NAME
    else:
        directory = Path(str(model)).expanduser().resolve()
        if not (directory / "config.json").is_file():
            what = "holds no config.json" if directory.is_dir() else "is no directory"
            raise ConfigError(
                f"{service.name}.model: {directory} {what}; give a Hugging Face model directory, "
                f"or leave it out for {DEMO_NAME}"
            )
        flags["model"], name = directory, directory.name
    if "served_model_name" not in service.common:
        return None
    if flags.get("served_model_name") is None:
        flags["served_model_name"] = given("served_model_name") or name
    return str(flags["served_model_name"])
