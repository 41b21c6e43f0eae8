"""Requests that wait for their admission, in the order in which they are served where nobody passes anybody."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import neg

from wavepp_worker.runtime.admission.waiting import Waiting


class WaitingLine:
    """By name, those of a higher priority first, and after that who came first.

    Each priority has a line of its own: who comes goes to the end of one, however many wait.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Waiting] = {}
        self._lines: dict[int, OrderedDict[str, Waiting]] = {}
        self._priorities: list[int] = []
        """Those that somebody has, the highest first."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Waiting:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._in_order())

    def items(self) -> Iterator[tuple[str, Waiting]]:
        return chain.from_iterable(line.items() for line in self._in_order())

    def values(self) -> Iterator[Waiting]:
        return chain.from_iterable(line.values() for line in self._in_order())

    def last_served_first(self) -> Iterator[Waiting]:
        """``values`` from the end."""
        lines = (self._lines[priority] for priority in reversed(self._priorities))
        return chain.from_iterable(reversed(line.values()) for line in lines)

    def append(self, name: str, entry: Waiting) -> None:
        """A request waits, behind all others of its priority."""
        if entry.priority not in self._lines:
            self._lines[entry.priority] = OrderedDict()
            insort(self._priorities, entry.priority, key=neg)
        self._lines[entry.priority][name] = self._entries[name] = entry

    def put_back(self, entries: Iterable[tuple[str, Waiting]]) -> None:
        """These were taken, and wait again: each before those who came after it."""
        changed = set()
        for name, entry in entries:
            self.append(name, entry)
            changed.add(entry.priority)
        for priority in changed:
            ordered = sorted(self._lines[priority].items(), key=lambda item: item[1].number)
            self._lines[priority] = OrderedDict(ordered)

    def take_out(self, name: str) -> Waiting | None:
        """Whoever waits by this name waits no more; None if nobody does."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            line = self._lines[entry.priority]
            del line[name]
            if not line:
                del self._lines[entry.priority]
                self._priorities.remove(entry.priority)
        return entry

    def check(self) -> None:
        """Raise ValueError unless everybody stands in the line of their priority, and no line is empty."""
        if self._priorities != sorted(self._lines, reverse=True) or not all(self._lines.values()):
            raise ValueError(
                f"of priorities {[*self._lines]}, some without anybody, {self._priorities} are served"
            )
        for priority, line in self._lines.items():
            if any(entry.priority != priority for entry in line.values()):
                raise ValueError(f"somebody waits in the line of priority {priority} who has another")
        if dict(self.items()) != self._entries:
            raise ValueError(f"{len(self._entries)} requests wait, but the lines have {[*self]}")

    def _in_order(self) -> Iterator[OrderedDict[str, Waiting]]:
        return (self._lines[priority] for priority in self._priorities)
