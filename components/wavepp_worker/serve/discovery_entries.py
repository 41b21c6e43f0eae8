"""What a dead worker has left in Dynamo's discovery by files: without it, frontends ask it until its lease ends."""

from __future__ import annotations

import contextlib
from pathlib import Path


def remove_entries(store: Path, instance: str) -> int:
    """Remove all that tells of one worker.

    Args:
        store: the root of the files.
        instance: the worker's id, in hexadecimal.

    Returns:
        How many entries there were.
    """
    told = f":{int(instance, 16)},".encode()
    removed = 0
    for entry in store.rglob("*"):
        with contextlib.suppress(OSError):
            if entry.is_file() and (entry.name.endswith(f"%2F{instance}") or told in entry.read_bytes()):
                entry.unlink()
                removed += 1
    return removed
