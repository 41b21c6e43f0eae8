"""Directories of replicas that there were once, and that no replica of this start uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavepp_worker.serve.graph import Service
from wavepp_worker.serve.replica_values import PLACE


def unused_directories(service: Service, values: Mapping[str, Any], replicas: int) -> list[str]:
    """A sentence for each setting that left a directory to nobody, as when there are fewer replicas than before.

    Args:
        values: flags as they are written, by key.
        replicas: how many there are.
    """
    sentences = []
    for key, kind in service.unshared.items():
        value = values.get(key)
        if kind != "directory" or value is None or PLACE in str(value):
            continue
        path = Path(str(value))
        numbers = sorted(
            int(each.name.removeprefix("replica-")) for each in path.glob("replica-*") if _ours(each)
        )
        unused = [f"replica-{number}" for number in numbers if replicas == 1 or number >= replicas]
        if not unused:
            continue
        does = (
            f"{replicas} replicas use the others" if replicas > 1 else f"one replica alone uses {path} itself"
        )
        sentences.append(
            f"{service.name}.{key}: nobody uses {', '.join(unused)} in {path}, as {does}; start as many replicas as "
            f"there were, give one replica {path / unused[0]}, or remove what nobody needs"
        )
    return sentences


def _ours(path: Path) -> bool:
    return path.is_dir() and re.fullmatch(r"replica-\d+", path.name) is not None
