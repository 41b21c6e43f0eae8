"""The replica on the virtual clock against closed forms; without host time, so that every run is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavepp_worker import EngineConfig
from wavepp_worker.model.timed.timed_model import Link, TimedModel, write_timed_model

from bench.trace.file import read_trace, reusable
from bench.virtual.replica import Replica

BLOCK, CHUNK = 16, 64
T = 0.064
"""Seconds of a full wave on one of four stages."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nothing = Link(latency=0.0, bandwidth=1e18)
    return write_timed_model(
        tmp_path / "model",
        TimedModel(
            name="four equal stages",
            layers=8,
            vocabulary=1000,
            context_length=100_000,
            wave_seconds=0.0,
            token_seconds=0.0005,
            context_seconds=0.0,
            activation_bytes=1.0,
            kv_bytes=1.0,
            hop=nothing,
            to_host=nothing,
            from_host=nothing,
        ),
    )


def replica(model: Path, **values: Any) -> Replica:
    values = {
        "pp": 4,
        "max_num_batched_tokens": CHUNK,
        "block_size": BLOCK,
        "kv_tokens": 40_000,
        "planner": "greedy",
        **values,
    }
    return Replica(EngineConfig(model=model, **values), charge=0.0, latency=0.0)


def prompts(*lengths: int, shared: int = 0, seed: int = 0) -> Iterator[bytes]:
    draw = np.random.default_rng(seed)
    prefix = draw.integers(0, 1000, shared, dtype=np.uint32).tobytes()
    for length in lengths:
        yield prefix + draw.integers(0, 1000, length - shared, dtype=np.uint32).tobytes()


@pytest.mark.parametrize("values", [{}, {"admission": "lockstep"}, {"ownership": "none"}])
def test_waves_through_a_pipeline_take_their_number_and_the_stages_before_the_last(
    model: Path, values: dict[str, Any]
) -> None:
    """``k`` full waves through ``P`` stages take ``(k + P - 1) * t``."""
    there = replica(model, **values)
    (served,) = there.closed_loop(prompts(10 * CHUNK), 1)
    assert served.completion == pytest.approx((10 + 3) * T, rel=1e-6)
    begun = there.events.now
    many = there.closed_loop(prompts(*[4 * CHUNK] * 25, seed=1), 8)
    assert there.events.now - begun == pytest.approx((100 + 3) * T, rel=1e-6)
    assert there.waves == 100
    assert len(many) == 25
    there.audit()


def test_a_stage_is_busy_or_idle_for_a_reason(model: Path) -> None:
    there = replica(model)
    begun = there.events.now
    there.closed_loop(prompts(*[4 * CHUNK] * 10), 1)
    seconds = there.events.now - begun
    for number, rank in enumerate(there.ranks):
        idle = rank.idle_shares(seconds)
        assert sum(idle.values()) + rank.busy / seconds == pytest.approx(1.0)
        # One client: while its four waves are elsewhere, there is nothing to do.
        assert rank.busy / seconds == pytest.approx(4 / 7)
        assert idle["no_work"] + idle["upstream"] == pytest.approx(3 / 7)
        assert (idle["upstream"] > 0) == (number > 0)


def test_prefixes_are_reused_and_what_the_device_cannot_keep_is_not(model: Path) -> None:
    there = replica(model, kv_tokens=20_000)
    first, second = there.closed_loop(prompts(2048, 2048, shared=1600), 1)
    assert (first.reused_tokens, second.reused_tokens) == (0, 1600)
    there.closed_loop(prompts(*[4000] * 8), 2)
    (again,) = there.closed_loop(prompts(2048, shared=1600), 1)
    assert again.reused_tokens == 0
    there.audit()


def test_repeated_runs_are_equal(model: Path) -> None:
    runs = []
    for _ in range(2):
        there = replica(model, planner="mpu")
        served = there.closed_loop(prompts(*range(100, 2000, 50), shared=80), 6)
        runs.append([each.finished for each in served])
    assert runs[0] == runs[1]


def test_requests_of_one_instant_come_in_the_order_they_were_sent(model: Path) -> None:
    """One thread of the engine makes all keys: those of a short prompt wait for those of a long one before it."""
    config = EngineConfig(
        model=model,
        pp=4,
        max_num_batched_tokens=CHUNK,
        block_size=BLOCK,
        kv_tokens=200_000,
        order="fcfs",
    )
    served = Replica(config, charge=1.0).closed_loop(prompts(60_000, 16, 30_000, 16), 4)
    assert [each.turn for each in served] == [0, 1, 2, 3]


def test_arrivals_do_not_wait_for_answers(model: Path) -> None:
    there = replica(model)
    served = there.open_loop((0.01 * at, prompt) for at, prompt in enumerate(prompts(*[640] * 5)))
    assert [each.submitted for each in served] == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])
    assert served[-1].finished == pytest.approx((50 + 3) * T, rel=1e-6)


def test_the_timeline_has_every_wave_on_every_rank(model: Path) -> None:
    config = EngineConfig(model=model, pp=4, max_num_batched_tokens=CHUNK, block_size=BLOCK, kv_tokens=4000)
    there = Replica(config, timeline=True)
    there.closed_loop(prompts(300, 300), 2)
    for timeline in there.timelines():
        waves = [each.wave for each in timeline.slices if each.track == "device"]
        assert waves == list(range(there.waves))
        assert {each.track for each in timeline.slices} >= {"admission", "loop", "device"}


def test_a_trace_shares_what_its_block_ids_share(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [(0, 1200, [0, 1, 2]), (500, 1100, [0, 1, 3]), (900, 600, [7, 8])]
    file.write_text(
        "".join(f'{{"timestamp": {t}, "input_length": {n}, "hash_ids": {ids}}}\n' for t, n, ids in lines)
    )
    first, second, third = read_trace(file)
    a, b, c = (each.tokens(1000) for each in (first, second, third))
    assert (len(a), len(b), len(c)) == (4800, 4400, 2400)
    assert a[: 4 * 1024] == b[: 4 * 1024]
    assert a[4 * 1024 : 4 * 1100] != b[4 * 1024 :]
    assert reusable([first, second, third]) == pytest.approx(1024 / 2900)
    file.write_text('{"timestamp": 0}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_trace(file)
