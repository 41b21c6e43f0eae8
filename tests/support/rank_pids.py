"""The rank processes of a worker."""

from __future__ import annotations

from pathlib import Path


def ranks_of(pid: int) -> list[int]:
    """The rank processes below a worker, in the order they were started: rank 0 first."""
    found = []
    for child in sorted(_children(pid)):
        if b"wavepp_worker.runtime.rank.main" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(child)
        found.extend(ranks_of(child))
    return found


def _children(pid: int) -> list[int]:
    lists = [task.joinpath("children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [int(child) for text in lists for child in text.split()]
