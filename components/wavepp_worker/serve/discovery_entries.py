"""What a dead worker has left in Dynamo's discovery: without it, frontends ask it until its lease ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from wavepp_worker.etcd_leases import end_lease
from wavepp_worker.serve.environment import STORE_VARIABLE


def forgetter(discovery: str, environment: Mapping[str, str]) -> Callable[[str], object] | None:
    """What takes a dead worker out of discovery, called with its id in hexadecimal; None where nothing can.

    Args:
        discovery: Dynamo's name of it.
        environment: of the worker.
    """
    if discovery == "etcd":
        return partial(end_lease, dict(environment))
    if STORE_VARIABLE in environment:
        return partial(remove_entries, Path(environment[STORE_VARIABLE]))
    return None


def remove_entries(store: Path, instance: str) -> int:
    """Remove all files that tell of one worker.

    Args:
        store: the root of the files.
        instance: the worker's id, in hexadecimal.

    Returns:
        How many entries there were.
    """
    told = f":{int(instance, 16)},".encode()
    removed = 0
    # A worker's base model before its adapters, as it would take them out itself.
    for entry in sorted(store.rglob("*")):
        with contextlib.suppress(OSError):
            if entry.is_file() and (entry.name.endswith(f"%2F{instance}") or told in entry.read_bytes()):
                entry.unlink()
                removed += 1
    return removed
