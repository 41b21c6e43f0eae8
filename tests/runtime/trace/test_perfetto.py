"""How ranks' slices become one trace: tracks, names, and an arrow for every wave."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.trace.perfetto import write_timeline
from wavepp_worker.runtime.trace.slices import RankTimeline, Slice

from tests.support.traces import flow_hops, slices, traced


def pipeline(ranks: int, waves: int) -> list[RankTimeline]:
    """A pipeline of devices behind their hosts; some waves carry two requests."""
    draw = random.Random(ranks)
    made: list[list[Slice]] = [[] for _ in range(ranks)]
    free, launched = [10**12] * ranks, 10**12
    for wave in range(waves):
        spans = tuple(Span(f"r{wave + part}", 8 * part, 8, False) for part in range(1 + wave % 2))
        launched += 1000
        arrived = launched
        for rank in range(ranks):
            start = max(arrived, free[rank])
            free[rank] = arrived = start + draw.randrange(1, 5000)
            made[rank] += [
                Slice("loop", "launch", launched, launched + 900, wave, (), spans),
                Slice("device", "forward", start, free[rank], wave, (), spans),
                Slice("admission", "hint", launched + 3, launched + 4, None, ("r0",)),
                Slice("admission", "round", launched + 3, launched + 500),
            ]
            draw.shuffle(made[rank])
    return [RankTimeline(rank, tuple(of_rank)) for rank, of_rank in enumerate(made)]


def test_every_wave_is_one_flow_over_all_ranks(tmp_path: Path) -> None:
    write_timeline(tmp_path / "trace.json", pipeline(ranks=3, waves=20))
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    events = traced(tmp_path / "trace.json")
    assert flow_hops(events) == 2 * 20
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1", "rank 2"}
    devices = {event["tid"] for event in slices(events, "device")}
    assert {event["tid"] for event in events if event["ph"] in "stf"} == devices


def test_waves_of_a_request_share_a_name_and_numbered_requests_differ_without_their_digits(
    tmp_path: Path,
) -> None:
    write_timeline(tmp_path / "trace.json", pipeline(ranks=2, waves=30))
    events = traced(tmp_path / "trace.json")
    names = defaultdict(set)
    for event in slices(events, "device"):
        names[event["args"]["requests"][0]].add(event["name"])
    assert all(len(name) == 1 for name in names.values())
    undigited = {"".join(c for c in name.pop() if not c.isdigit()) for name in names.values()}
    assert len(undigited) == len(names) == 30
    two = next(event for event in slices(events, "device") if event["args"]["wave"] == 1)
    assert two["args"] == {
        "wave": 1,
        "tokens": 16,
        "requests": ["r1", "r2"],
        "spans": ["0 to 8", "8 to 16"],
    }


def test_arrows_join_what_is_there(tmp_path: Path) -> None:
    """A rank that left nothing, and one whose clock is behind, cost the arrows to them only."""
    ranks = pipeline(ranks=5, waves=5)
    ranks[2] = RankTimeline(2, (), dropped=7)
    write_timeline(tmp_path / "trace.json", ranks)
    events = traced(tmp_path / "trace.json")
    assert flow_hops(events) == 2 * 5
    assert any(event["args"].get("name") == "rank 2 (7 earlier slices dropped)" for event in events)
    late = [
        Slice(s.track, s.name, s.start - 10**9, s.end - 10**9, s.wave, (), s.spans) for s in ranks[4].slices
    ]
    write_timeline(tmp_path / "trace.json", [ranks[3], RankTimeline(4, tuple(late))])
    assert flow_hops(traced(tmp_path / "trace.json")) == 0
    write_timeline(tmp_path / "trace.json", [])
    assert traced(tmp_path / "trace.json") == []
