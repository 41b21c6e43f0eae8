"""CPU time that processes other than our own took meanwhile. Needs nothing, as both sides' Pythons read it."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """From its making on; counts this process and its children, down to the last, as our own."""

    def __init__(self) -> None:
        self._begun, self._all, self._own = time.perf_counter(), _all_seconds(), _own_seconds()

    def share(self) -> float:
        """Of all cores' time since then, 0 to 1."""
        available = (time.perf_counter() - self._begun) * (os.cpu_count() or 1)
        taken = (_all_seconds() - self._all) - (_own_seconds() - self._own)
        return min(1.0, max(0.0, taken / available))


def _all_seconds() -> float:
    user, nice, system, _, _, interrupts, soft, stolen, *_ = Path("/proc/stat").read_text().split()[1:]
    return sum(map(int, (user, nice, system, interrupts, soft, stolen))) / TICKS


def _own_seconds() -> float:
    """Of those that live, with what their dead children took."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(process.name)] = int(fields[1])
        ticks[int(process.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= found
    return sum(ticks.get(pid, 0) for pid in own) / TICKS
