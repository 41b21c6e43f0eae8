"""Timelines: what is recorded, how the trace is put together, and the trace of a real run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.cli import app
from wavepp_worker.errors import ConfigError, EngineDead
from wavepp_worker.model.info import read_model_info
from wavepp_worker.runtime.client.prompts import pack_tokens
from wavepp_worker.runtime.client.rank_layout import rank_configs
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.trace.timeline import OFF, RankTimeline, Slice, Timeline, write_timeline
from wavepp_worker.runtime.trace.timeline_file import TimelineFile, read_rank

Event = dict[str, Any]

GLM = Path(__file__).parents[3] / "bench/models/glm-5.2-pp4/timed.json"


def traced(path: Path) -> list[Event]:
    """The events of a trace that keeps the rules every trace has to keep."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert all(event["ts"] >= 0 for event in timed)
    check_tracks(events)
    check_flows(timed)
    return events


def check_tracks(events: list[Event]) -> None:
    """Threads have names and numbers of their own; on each, slices nest or follow one another."""
    threads = {event["tid"]: event["pid"] for event in events if event["name"] == "thread_name"}
    assert len(threads) == sum(event["name"] == "thread_name" for event in events)
    open_ends: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert threads[event["tid"]] == event["pid"]
            start = round(1000 * event["ts"])
            end = start + round(1000 * event["dur"])
            assert end >= start
            stack = open_ends[event["tid"]]
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1], f"{event} overlaps another slice of its track"
            stack.append(end)


def check_flows(events: list[Event]) -> None:
    """Each flow starts and ends once, on ranks that follow one another, at the start of a slice of its wave."""
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    at = {(event["tid"], event["ts"]): event for event in events if event["ph"] == "X" and event["args"]}
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (len(flow) - 2), "f"]
        ranks = [event["pid"] for event in flow]
        assert ranks == list(range(ranks[0], ranks[0] + len(ranks)))
        assert len({at[event["tid"], event["ts"]]["args"]["wave"] for event in flow}) == 1


def slices(events: list[Event], track: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["cat"] == track]


def flow_hops(events: list[Event]) -> int:
    return sum(event["ph"] in "tf" for event in events)


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


def test_a_recorder_keeps_the_latest_and_counts_the_rest() -> None:
    now = iter(range(1000))
    timeline = Timeline(limit=3, clock=lambda: next(now))
    for index in range(5):
        with timeline.span("loop", f"s{index}", index, [Admit("a", 3), "b"]):
            pass
    taken, dropped = timeline.take()
    assert (taken, dropped) == (
        [Slice("loop", f"s{index}", 2 * index, 2 * index + 1, index, ("a", "b")) for index in (2, 3, 4)],
        2,
    )
    assert timeline.take() == ([], 0)
    with pytest.raises(KeyError), timeline.span("loop", "fails"):
        raise KeyError
    assert [each.name for each in timeline.take()[0]] == ["fails"]
    OFF.record("loop", "nothing", 0, 1)
    with OFF.span("loop", "nothing"):
        assert OFF.now() == 0
    assert OFF.take() == ([], 0)


def test_a_ranks_file_is_bounded_and_survives_a_torn_write(tmp_path: Path) -> None:
    path = tmp_path / "rank"
    file = TimelineFile(path, limit=20)
    for index in range(95):
        file.timeline.record("loop", "x", index, index + 1)
        if index % 5 == 4:
            file.flush()
    file.close()
    file.close()
    kept = read_rank(path, 4)
    starts = [each.start for each in kept.slices]
    assert starts == list(range(95 - len(starts), 95))
    assert 10 <= len(starts) <= 20
    assert kept.dropped == 95 - len(starts)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [each.start for each in read_rank(path, 4).slices] == starts[:-5]
    assert read_rank(tmp_path / "never made", 1) == RankTimeline(1, ())


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(count)
    shared = [draw.randrange(256) for _ in range(40)]
    return [shared + [draw.randrange(256) for _ in range(draw.randrange(1, 80))] for _ in range(count)]


def run(engine: PrefillEngine, count: int) -> None:
    jobs = [
        engine.submit(PrefillRequest(request_id=f"job-{index}", tokens=pack_tokens(prompt)))
        for index, prompt in enumerate(prompts(count))
    ]
    for job in jobs:
        job.result(60)


@pytest.fixture
def timed_model(tmp_path: Path) -> Path:
    """Virtual devices, so fast that a run takes no time."""
    model = tmp_path / "timed"
    model.mkdir()
    described = json.loads(GLM.read_text())
    (model / "timed.json").write_text(json.dumps(described | {"speed": 1000}))
    return model


def test_a_real_run(tiny_llama: Path, tmp_path: Path) -> None:
    """Every wave is on every rank, and every request is announced, prepared and applied on every rank."""
    path = tmp_path / "trace.json"
    config = EngineConfig(model=tiny_llama, pp=2, chunk=32, dtype="float32", kv_tokens=9000, timeline=path)
    with PrefillEngine(config) as engine:
        run(engine, 8)
        assert not path.exists()
    events = traced(path)
    for rank in (0, 1):
        of_rank = [event for event in events if event["pid"] == rank + 1]
        for name in ("announce", "prepare", "hint", "apply"):
            part = [event for event in slices(of_rank, "admission") if event["name"] == name]
            assert {each for event in part for each in event["args"]["requests"]} == {
                f"job-{index}" for index in range(8)
            }
        computed: dict[str, int] = defaultdict(int)
        forwards = [event for event in slices(of_rank, "loop") if event["name"].startswith("forward ")]
        assert [event["args"]["wave"] for event in forwards] == list(range(len(forwards)))
        for event in forwards:
            for request, span in zip(event["args"]["requests"], event["args"]["spans"], strict=True):
                start, end = span.split(" to ")
                computed[request] += int(end) - int(start)
        assert computed["job-0"] == len(prompts(8)[0])
        assert len(computed) == 8
        names = {event["name"] for event in slices(of_rank, "loop")}
        assert names >= {"materialise", *(("wait", "plan", "send") if rank == 0 else ("receive", "answer"))}
        assert not slices(of_rank, "parked")
    assert flow_hops(events) == len(forwards)


def test_virtual_devices_and_parked_executors_have_tracks(timed_model: Path, tmp_path: Path) -> None:
    """Of a timed stage it is known when its device works, on every rank."""
    path = tmp_path / "trace.json"
    config = EngineConfig(model=timed_model, pp=2, max_model_len=8192, admission="lockstep", timeline=path)
    with PrefillEngine(config) as engine:
        run(engine, 6)
    events = traced(path)
    for rank in (0, 1):
        of_rank = [event for event in events if event["pid"] == rank + 1]
        launched = [e["args"]["wave"] for e in slices(of_rank, "loop") if e["name"].startswith("launch ")]
        assert [event["args"]["wave"] for event in slices(of_rank, "device")] == launched != []
        assert slices(of_rank, "parked")
    assert slices(of_rank, "answers")
    assert flow_hops(events) == len(launched)


def test_the_trace_of_a_run_that_died(timed_model: Path, tmp_path: Path) -> None:
    """A killed rank takes the others with it; what they all had done until then is there."""
    path = tmp_path / "trace.json"
    engine = PrefillEngine(EngineConfig(model=timed_model, pp=2, max_model_len=8192, timeline=path))
    engine.start()
    run(engine, 3)
    time.sleep(0.6)
    os.kill(engine.rank_pids[1], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while engine.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(EngineDead):
        engine.prefill([1, 2, 3])
    engine.close()
    assert {event["pid"] for event in slices(traced(path), "loop")} == {1, 2}


def test_a_place_that_cannot_be_written_to(tiny_llama: Path, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "no" / "trace.json", "not a directory"), (tmp_path, "is a directory")):
        engine = PrefillEngine(EngineConfig(model=tiny_llama, timeline=path))
        with pytest.raises(ConfigError, match=rf"^timeline is .*{says}"):
            engine.start()


def test_by_the_command_line(timed_model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text('{"id": 1, "token_ids": [1, 2, 3, 4, 5]}\n')
    command = ["prefill", "--model", str(timed_model), "--max-model-len", "4096"]
    command += ["--prompts", str(tmp_path / "prompts"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--timeline", str(tmp_path / "trace")])
    assert result.exit_code == 0, result.output
    assert traced(tmp_path / "trace")


def test_nothing_is_recorded_unless_asked(timed_model: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=timed_model, pp=2)
    assert {each.timeline for each in rank_configs(config, read_model_info(timed_model), tmp_path)} == {""}
    with PrefillEngine(EngineConfig(model=timed_model, max_model_len=4096)) as engine:
        run(engine, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["timed"]
