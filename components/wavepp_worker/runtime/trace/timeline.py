"""What happened when on every rank, and how it is written as a trace for ui.perfetto.dev or chrome://tracing.

Times are nanoseconds of one clock. The ranks of one host share it: Linux counts monotonic time once for all
processes. Ranks on different hosts do not: each rank's own slices stay right, but they are shifted against
another host's by the difference of the two clocks, and an arrow that would go back in time is left out.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import msgspec

from wavepp_worker.runtime.protocol.waves import Span

TRACKS = ("admission", "parked", "loop", "device", "answers")
"""Tracks in the order they are shown; on each, slices follow one another or lie within one another."""
FORWARD, LAUNCH = "forward", "launch"
"""Slices of a wave in a stage: while it computes, and while the host queues it on a device behind the host."""
LIMIT = 100_000
"""Most slices that are kept of one rank; the oldest go first."""
NOTHING: AbstractContextManager[None] = nullcontext()

_TAG = "abcdefghijklmnopqrstuvwxyz"


class Named(Protocol):
    """A message about one request."""

    @property
    def request_id(self) -> str: ...


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that took a while.

    Attributes:
        track: one of ``TRACKS``.
        start: nanoseconds.
        end: nanoseconds, not before ``start``.
        wave: the wave it was done for.
        requests: ids of the requests it was done for, if not those of ``spans``.
        spans: the wave's chunks; filled for ``FORWARD`` and ``LAUNCH``.
    """

    track: str
    name: str
    start: int
    end: int
    wave: int | None = None
    requests: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


class RankTimeline(msgspec.Struct, frozen=True):
    """One rank's slices, in any order; ``dropped`` older ones are missing."""

    rank: int
    slices: tuple[Slice, ...]
    dropped: int = 0


class Timeline:
    """Records the latest slices of one rank. Thread-safe."""

    on = True

    def __init__(self, limit: int = LIMIT, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Keep up to ``limit`` slices; ``clock`` returns nanoseconds."""
        self.now = clock
        self._slices: deque[Slice] = deque(maxlen=limit)
        self._dropped = 0
        self._lock = threading.Lock()

    def record(
        self,
        track: str,
        name: str,
        start: int,
        end: int,
        wave: int | None = None,
        requests: Sequence[str | Named] = (),
        spans: tuple[Span, ...] = (),
    ) -> None:
        """Add one slice; see ``Slice``."""
        ids = tuple(item if isinstance(item, str) else item.request_id for item in requests)
        made = Slice(track, name, start, end, wave, ids, spans)
        with self._lock:
            self._dropped += len(self._slices) == self._slices.maxlen
            self._slices.append(made)

    def span(
        self, track: str, name: str, wave: int | None = None, requests: Sequence[str | Named] = ()
    ) -> AbstractContextManager[None]:
        """Record how long the body of a ``with`` statement takes, also if it fails."""
        return _Open(self, track, name, wave, requests)

    def take(self) -> tuple[list[Slice], int]:
        """The slices since the last call, and how many before them were dropped meanwhile."""
        with self._lock:
            taken, dropped = list(self._slices), self._dropped
            self._slices.clear()
            self._dropped = 0
        return taken, dropped


class _Open:
    """A slice that has begun."""

    __slots__ = ("_requests", "_start", "_timeline", "_wave", "_what")

    def __init__(
        self, timeline: Timeline, track: str, name: str, wave: int | None, requests: Sequence[str | Named]
    ) -> None:
        self._timeline = timeline
        self._what = (track, name)
        self._wave = wave
        self._requests = requests

    def __enter__(self) -> None:
        self._start = self._timeline.now()

    def __exit__(self, *_: object) -> None:
        end = self._timeline.now()
        self._timeline.record(*self._what, self._start, end, self._wave, self._requests)


class NoTimeline(Timeline):
    """Records nothing, in as little time as possible; ``now`` is always 0."""

    on = False

    def __init__(self) -> None:
        super().__init__(0, int)

    def record(self, *_: Any, **__: Any) -> None:
        return None

    def span(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return NOTHING


OFF = NoTimeline()


def write_timeline(path: Path, ranks: Sequence[RankTimeline]) -> None:
    """Write all ranks' slices as one JSON trace; ``path`` is replaced at once, when the trace is complete.

    Raises:
        OSError: it cannot be written.
    """
    encoder = msgspec.json.Encoder()
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(b'{"traceEvents":[\n')
        for index, event in enumerate(trace_events(ranks)):
            file.write((b",\n" if index else b"") + encoder.encode(event))
        file.write(b"\n]}\n")
    os.replace(partial, path)


def trace_events(ranks: Sequence[RankTimeline]) -> Iterator[dict[str, Any]]:
    """The events of a Chrome trace, in time order: a process per rank, a thread per track, a flow per wave.

    Times are microseconds since the first slice.
    """
    origin = min((each.start for of_rank in ranks for each in of_rank.slices), default=0)
    events: list[tuple[int, int, dict[str, Any]]] = []
    for of_rank in ranks:
        yield from _names(of_rank)
        for each in of_rank.slices:
            duration = each.end - each.start
            event = _place(of_rank.rank, each, origin) | {"ph": "X", "dur": duration / 1000}
            event |= {"name": _name(each), "cat": each.track, "args": _arguments(each)}
            # Of two slices that begin together the longer one encloses the other, so it comes first.
            events.append((each.start, -duration, event))
    for slices in _hops(ranks):
        first = slices[0]
        for index, (rank, each) in enumerate(slices):
            phase = "s" if index == 0 else "f" if index == len(slices) - 1 else "t"
            event = _place(rank, each, origin) | {"ph": phase, "bp": "e", "name": "wave", "cat": "wave"}
            # A wave's flow is split where a rank's slice is missing, so its id is not the wave's alone.
            event["id"] = (first[1].wave or 0) * len(ranks) + first[0]
            events.append((each.start, 1, event))
    for _, _, event in sorted(events, key=itemgetter(0, 1)):
        yield event


def _names(of_rank: RankTimeline) -> Iterator[dict[str, Any]]:
    process = _process(of_rank.rank)
    missing = f" ({of_rank.dropped} earlier slices dropped)" if of_rank.dropped else ""
    named = {"process_name": {"name": f"rank {of_rank.rank}{missing}"}}
    for name, arguments in (*named.items(), ("process_sort_index", {"sort_index": of_rank.rank})):
        yield {"ph": "M", "pid": process, "name": name, "args": arguments}
    for track in sorted({each.track for each in of_rank.slices}, key=TRACKS.index):
        thread = {"ph": "M", "pid": process, "tid": _thread(of_rank.rank, track)}
        yield thread | {"name": "thread_name", "args": {"name": track}}
        yield thread | {"name": "thread_sort_index", "args": {"sort_index": TRACKS.index(track)}}


def _process(rank: int) -> int:
    """Process 0 has a meaning of its own in traces."""
    return rank + 1


def _thread(rank: int, track: str) -> int:
    """Perfetto knows a thread by its number alone, whatever its process."""
    return 1000 * _process(rank) + TRACKS.index(track)


def _place(rank: int, each: Slice, origin: int) -> dict[str, Any]:
    start = (each.start - origin) / 1000
    return {"pid": _process(rank), "tid": _thread(rank, each.track), "ts": start}


def _name(each: Slice) -> str:
    """A wave is named after its first request, as viewers colour a slice by its name.

    Perfetto leaves digits out when it picks a colour, so requests that differ in a number only get three
    letters made from it.
    """
    if not each.spans:
        return each.name
    head = each.spans[0].request_id
    number = zlib.crc32(head.encode())
    return f"{each.name} {head} " + "".join(_TAG[number // 26**place % 26] for place in range(3))


def _arguments(each: Slice) -> dict[str, Any]:
    arguments: dict[str, Any] = {} if each.wave is None else {"wave": each.wave}
    if each.spans:
        arguments["tokens"] = sum(span.length for span in each.spans)
        arguments["requests"] = [span.request_id for span in each.spans]
        arguments["spans"] = [f"{span.start} to {span.start + span.length}" for span in each.spans]
    elif each.requests:
        arguments["requests"] = each.requests
    return arguments


def _hops(ranks: Sequence[RankTimeline]) -> Iterator[list[tuple[int, Slice]]]:
    """For every wave, its slices on ranks that follow one another, at least two of them."""
    stages: dict[tuple[int, int], Slice] = {}
    for of_rank in ranks:
        for each in of_rank.slices:
            if each.wave is None or each.name not in (FORWARD, LAUNCH):
                continue
            place = (each.wave, of_rank.rank)
            if place not in stages or stages[place].name == LAUNCH:
                stages[place] = each
    run: list[tuple[int, Slice]] = []
    for (_, rank), each in sorted(stages.items(), key=itemgetter(0)):
        if run:
            last, before = run[-1]
            if before.wave != each.wave or rank != last + 1 or each.start < before.start:
                if len(run) > 1:
                    yield run
                run = []
        run.append((rank, each))
    if len(run) > 1:
        yield run
