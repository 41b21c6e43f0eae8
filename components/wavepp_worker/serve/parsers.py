"""The class that parses a service's flags, which its graph names."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.log_form import EXPORT_VARIABLE, FORMAT_VARIABLE, JSON_VARIABLE
from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.log_config import check_log_config


def parser_of(service: Service) -> Any:
    """The class that ``Service.arguments`` names; None if it names none.

    Raises:
        ConfigError: its module, or Dynamo, cannot be imported.
    """
    if service.arguments is None:
        return None
    check_log_config(os.environ)
    _import_dynamo_in_silence()
    module, _, name = service.arguments.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{service.name}: {module} cannot be imported: {error}") from error


def _import_dynamo_in_silence() -> None:
    """With these variables Dynamo says on standard error, as it is imported, what it exports; the launcher never does.

    Parsers import it, some only as they parse.
    """
    asked = {
        name: os.environ.pop(name)
        for name in (EXPORT_VARIABLE, FORMAT_VARIABLE, JSON_VARIABLE)
        if name in os.environ
    }
    try:
        if asked:
            with suppress(ImportError):
                importlib.import_module("dynamo._core")
    finally:
        os.environ.update(asked)
