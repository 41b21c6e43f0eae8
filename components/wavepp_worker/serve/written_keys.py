"""Settings as the user wrote them: on the command line, in a line of a file, or in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from wavepp_worker.serve.config_sources import config_path, override_key, underscored
from wavepp_worker.serve.graph import COMMON, PLANES, Graph
from wavepp_worker.serve.yaml_file import key_lines

_EVERYBODYS = ("model", "served_model_name")
"""What one service is given counts for all."""


class WrittenKeys:
    """Where each key of a run's configuration was written.

    Args:
        graph: whose services and former names count.
        words: the command line.
        file: the configuration file.
        short: options and variables that stand for a key: the key to the option or the variable.
    """

    def __init__(self, graph: Graph, words: Sequence[str], file: Path | None, short: dict[str, str]) -> None:
        self._graph = graph
        self._written: dict[str, str] = {}
        if file is not None:
            for path, line in key_lines(config_path(file), file).items():
                self._add(path, f"{'.'.join(path)} ({file}, line {line})")
        for word in words:
            if (key := override_key(word)) is not None:
                self._add(key, word.partition("=")[0])
        self._written |= short

    def rewrite(self, message: str) -> str:
        """A sentence about ``Service.key`` as one about what the user wrote; about a place in a file, as it is."""
        if message.startswith("-f "):
            return message
        sections = {service.name for service in self._graph.services} | {
            key.partition(".")[0] for key in self._written
        }
        names = "|".join(sorted(map(re.escape, sections), key=len, reverse=True))
        return re.sub(
            rf"(?<![\w./-])(?:{names})(?:\.[A-Za-z_][\w-]*)+",
            lambda match: self._as_written(match[0]),
            message,
        )

    def _add(self, path: Sequence[str], written: str) -> None:
        section, *keys = path
        if not keys:
            return
        keys = [section, *map(underscored, keys)]
        self._written[".".join(keys)] = written
        services = [each for each in self._graph.services if section in (COMMON, each.name)]
        for present in (each.former.get(keys[1]) for each in services):
            if present is not None:
                self._written[".".join((section, present, *keys[2:]))] = written

    def _as_written(self, key: str) -> str:
        name, _, inner = key.partition(".")
        places = [key]
        service = next((each for each in self._graph.services if each.name == name), None)
        if service is not None and inner in service.common:
            places.append(f"{COMMON}.{inner}")
        if service is not None and inner in _EVERYBODYS:
            places += [f"{each.name}.{inner}" for each in self._graph.services]
        found = next((self._written[place] for place in places if place in self._written), None)
        variable = f"DYN_{inner.upper()}"
        if found is None and inner in PLANES and variable in os.environ:
            return f"{key} (from {variable})"
        return found or key
