"""The trace of real runs: what it has on every rank, also when a rank died, and that it is only made when asked."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.cli import app
from wavepp_worker.errors import ConfigError, EngineDead
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.traces import flow_hops, slices, traced

GLM = Path(__file__).parents[3] / "bench/models/glm-5.2-pp4/timed.json"


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(count)
    shared = [draw.randrange(256) for _ in range(40)]
    return [shared + [draw.randrange(256) for _ in range(draw.randrange(1, 80))] for _ in range(count)]


def run(engine: PrefillEngine, count: int) -> None:
    jobs = [
        engine.submit(PrefillRequest.of(f"job-{index}", prompt))
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
    """Every wave is on every rank, and every request is announced, prepared and applied on every rank,
    under the id that the engine gave it: its caller's, and a number.
    """
    path = tmp_path / "trace.json"
    config = EngineConfig(
        model=tiny_llama, pp=2, max_num_batched_tokens=32, dtype="float32", kv_tokens=9000, timeline=path
    )
    with PrefillEngine(config) as engine:
        run(engine, 8)
        assert not path.exists()
    events = traced(path)
    for rank in (0, 1):
        of_rank = [event for event in events if event["pid"] == rank + 1]
        for name in ("announce", "prepare", "hint", "apply"):
            part = [event for event in slices(of_rank, "admission") if event["name"] == name]
            assert {each for event in part for each in event["args"]["requests"]} == {
                f"job-{index}-{index}" for index in range(8)
            }
        computed: dict[str, int] = defaultdict(int)
        forwards = [event for event in slices(of_rank, "loop") if event["name"].startswith("forward ")]
        assert [event["args"]["wave"] for event in forwards] == list(range(len(forwards)))
        for event in forwards:
            for request, span in zip(event["args"]["requests"], event["args"]["spans"], strict=True):
                start, end = span.split(" to ")
                computed[request] += int(end) - int(start)
        assert computed["job-0-0"] == len(prompts(8)[0])
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
