"""All ranks' slices as one trace, in Chrome's JSON format, for ui.perfetto.dev or chrome://tracing.

An arrow follows each wave from rank to rank; one that would go back in time, as between hosts whose clocks
differ, is left out.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from wavepp_worker.runtime.trace.slices import FORWARD, LAUNCH, TRACKS, RankTimeline, Slice

_TAG = "abcdefghijklmnopqrstuvwxyz"


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
        yield from _metadata(of_rank)
        for each in of_rank.slices:
            duration = each.end - each.start
            event = _place(of_rank.rank, each, origin) | {"ph": "X", "dur": duration / 1000}
            event |= {"name": _shown_name(each), "cat": each.track, "args": _arguments(each)}
            # Of two slices that begin together the longer one encloses the other, so it comes first.
            events.append((each.start, -duration, event))
    for slices in _flows(ranks):
        first = slices[0]
        for index, (rank, each) in enumerate(slices):
            phase = "s" if index == 0 else "f" if index == len(slices) - 1 else "t"
            event = _place(rank, each, origin) | {"ph": phase, "bp": "e", "name": "wave", "cat": "wave"}
            # A wave's flow is split where a rank's slice is missing, so its id is not the wave's alone.
            event["id"] = (first[1].wave or 0) * len(ranks) + first[0]
            events.append((each.start, 1, event))
    for _, _, event in sorted(events, key=itemgetter(0, 1)):
        yield event


def _metadata(of_rank: RankTimeline) -> Iterator[dict[str, Any]]:
    """What a viewer calls the rank's process and its threads, and in which order it shows them."""
    process = _process(of_rank.rank)
    missing = f" ({of_rank.dropped} earlier slices dropped)" if of_rank.dropped else ""
    for name, arguments in (
        ("process_name", {"name": f"rank {of_rank.rank}{missing}"}),
        ("process_sort_index", {"sort_index": of_rank.rank}),
    ):
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


def _shown_name(each: Slice) -> str:
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


def _flows(ranks: Sequence[RankTimeline]) -> Iterator[list[tuple[int, Slice]]]:
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
