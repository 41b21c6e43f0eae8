"""Values that differ between a service's replicas: ``{replica}`` in them, or of their own accord. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import Service

PLACE = "{replica}"
"""Where a value has the replica's number, counted from 0."""

_OTHER_PLACE = re.compile(r"\{\w*\}")


def replica_values(
    service: Service, values: Mapping[str, Any], replica: int, replicas: int
) -> dict[str, Any]:
    """The values of one replica.

    Of several replicas each gets its own of what they cannot share (``Service.unshared``), unless the value says
    where the number goes: a file ``trace.json`` is ``trace-0.json``, a directory ``kv`` is ``kv/replica-0``, and
    ports count up from the one that is given.

    Args:
        values: flags or environment variables, by key.
        replica: which one, from 0.
        replicas: how many there are.

    Raises:
        ConfigError: a port is given that is none, or a place for what replicas have not; names the key.
    """
    own = {}
    for key, value in values.items():
        placed = _placed(value, replica)
        kind = service.unshared.get(key)
        if kind is not None and (other := _OTHER_PLACE.search(str(placed))) is not None:
            raise ConfigError(
                f"{service.name}.{key}: {other[0]} stands for nothing; what does is {PLACE}, the replica's number"
            )
        alone = replicas == 1 or kind is None or value is None or placed != value
        own[key] = placed if alone else _apart(f"{service.name}.{key}", kind, value, replica)
    return own


def _placed(value: Any, replica: int) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, str(replica))
    if isinstance(value, (list, tuple)):
        return [_placed(each, replica) for each in value]
    if isinstance(value, Mapping):
        return {key: _placed(each, replica) for key, each in value.items()}
    return value


def _apart(where: str, kind: str | None, value: Any, replica: int) -> Any:
    if kind == "port":
        if not str(value).isdecimal():
            raise ConfigError(f"{where}: {value!r} is not a port number")
        # 0 asks for any free one.
        return int(value) + replica if int(value) else value
    path = Path(str(value))
    return path / f"replica-{replica}" if kind == "directory" else path.with_stem(f"{path.stem}-{replica}")
