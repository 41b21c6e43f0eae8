"""The class that parses a service's flags, which its graph names."""

from __future__ import annotations

import importlib
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import Service


def parser_of(service: Service) -> Any:
    """The class that ``Service.arguments`` names; None if it names none.

    Raises:
        ConfigError: its module cannot be imported.
    """
    if service.arguments is None:
        return None
    module, _, name = service.arguments.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{service.name}: {module} cannot be imported: {error}") from error
