"""Settings of workers that the launcher's environment has, ``DYN_WAVEPP_...``: over a file, under the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from wavepp_worker.serve.graph import COMMON, Graph, Service
from wavepp_worker.serve.parsers import parser_of
from wavepp_worker.setting_names import variable_of


def variable_settings(
    graph: Graph, overrides: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What variables set that the command line does not.

    Args:
        overrides: the command line's settings, by section and key.

    Returns:
        A section per service, as a file would have it; and of each ``Service.key`` in them the variable.
    """
    config: dict[str, dict[str, Any]] = {}
    written: dict[str, str] = {}
    for service in graph.services:
        sections = (overrides.get(service.name, {}), overrides.get(COMMON, {}))
        given = {service.former.get(key, key) for section in sections for key in section}
        for name in _settings(service):
            value, present = os.environ.get(variable_of(name)), service.former.get(name, name)
            if value and present not in given:
                config.setdefault(service.name, {})[name] = value
                written |= {f"{service.name}.{key}": variable_of(name) for key in (name, present)}
    return config, written


def _settings(service: Service) -> tuple[str, ...]:
    """Every name that a setting of the service may be given by, if its parser says so."""
    parser = parser_of(service)
    return parser.settings() if hasattr(parser, "settings") else ()
