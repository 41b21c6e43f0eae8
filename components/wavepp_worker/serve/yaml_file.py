"""A configuration file as YAML: every key once, and the line that each is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from wavepp_worker.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"


class _Loader(yaml.SafeLoader):
    """Refuses what YAML's own loader silently takes the last of."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            line, key = key_node.start_mark.line + 1, str(self.construct_object(key_node, deep=True))
            if same_key(key) in lines:
                problem = f"{key} is in line {lines[same_key(key)]} already; keep one of the two"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            lines[same_key(key)] = line
        return super().construct_mapping(node, deep=deep)


def same_key(key: str) -> str:
    """What two spellings of one key have in common: ``kv-tokens`` is ``kv_tokens``."""
    return key.replace("-", "_")


def load_yaml(path: Path, shown: Path) -> Any:
    """What a file holds.

    Args:
        shown: how messages call it.

    Raises:
        ConfigError: it cannot be read, is not YAML, has a key twice, or one in a section without a value; names the
            line. So for a NUL.
    """
    text = _text(path, shown)
    try:
        loaded = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        said = ", ".join(filter(None, (error.problem, error.context)))
        raise ConfigError(f"-f {shown}{place}: {said}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"-f {shown}: is not YAML: {' '.join(str(error).split())}") from error
    for keys, line, value in _walk(yaml.compose(text, yaml.SafeLoader), ()):
        if len(keys) > 1 and value.tag == _NULL and not value.value:
            raise ConfigError(
                f"-f {shown}, line {line}: {'.'.join(keys)} has no value; give it one, or leave the key out"
            )
    for token in yaml.scan(text, yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken) and "\0" in token.value:
            raise ConfigError(
                f"-f {shown}, line {token.start_mark.line + 1}: has a NUL, which no process can be told; leave it out"
            )
    return loaded


def key_lines(path: Path, shown: Path) -> dict[tuple[str, ...], int]:
    """The line of every key, by the keys on the way to it as they are written there.

    Raises:
        ConfigError: as for ``load_yaml``.
    """
    node = yaml.compose(_text(path, shown), yaml.SafeLoader)
    return {keys: line for keys, line, _ in _walk(node, ())}


def _walk(node: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*above, str(key.value))
            yield path, key.start_mark.line + 1, value
            yield from _walk(value, path)


def _text(path: Path, shown: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"-f {shown}: cannot be read ({error.strerror}); give a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"-f {shown}: is not text in UTF-8 ({error})") from error
