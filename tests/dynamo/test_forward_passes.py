"""What is told of waves and steps, in Dynamo's words."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.decode.engine_io import DecodeStep
from wavepp_worker.dynamo import forward_passes
from wavepp_worker.dynamo.forward_passes import REPEAT_SECONDS, ForwardPasses
from wavepp_worker.runtime.protocol.load import PrefillPass

from tests.support.dynamo_workers import FakeEndpoint
from tests.support.fake_engines import FakeFpmPublisher

WAVE = PrefillPass(
    requests=2, tokens=512, context_tokens=64, seconds=0.25, queued_requests=3, queued_tokens=900
)
STEP = DecodeStep(
    requests=4,
    kv_tokens=700,
    prompt_requests=1,
    prompt_tokens=30,
    prompt_context_tokens=10,
    seconds=0.125,
    queued_requests=1,
    queued_tokens=80,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(forward_passes.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> ForwardPasses:
    monkeypatch.setattr(forward_passes, "FpmDirectPublisher", FakeFpmPublisher)
    made = ForwardPasses()
    made.open(FakeEndpoint())
    return made


def told(passes: ForwardPasses) -> list[dict[str, Any]]:
    publisher: FakeFpmPublisher = passes._publisher
    assert publisher.worker_id == "7"
    return publisher.published


def test_a_wave_and_a_step_are_told_with_what_waits_for_both_engines(passes: ForwardPasses) -> None:
    passes.on_pass(WAVE)
    passes.on_step(STEP)
    wave, step = told(passes)
    assert wave == {
        "dp_rank": 0,
        "scheduled_num_prefill_requests": 2,
        "scheduled_sum_prefill_tokens": 512,
        "scheduled_sum_prefill_kv_tokens": 64,
        "scheduled_num_decode_requests": 0,
        "scheduled_sum_decode_kv_tokens": 0,
        "queued_num_prefill_requests": 3,
        "queued_sum_prefill_tokens": 900,
        "queued_num_decode_requests": 0,
        "queued_sum_decode_kv_tokens": 0,
        "wall_time_secs": 0.25,
    }
    assert step == {
        **wave,
        "scheduled_num_prefill_requests": 1,
        "scheduled_sum_prefill_tokens": 30,
        "scheduled_sum_prefill_kv_tokens": 10,
        "scheduled_num_decode_requests": 4,
        "scheduled_sum_decode_kv_tokens": 700,
        "queued_num_decode_requests": 1,
        "queued_sum_decode_kv_tokens": 80,
        "wall_time_secs": 0.125,
    }


def test_while_a_pass_takes_long_what_waits_is_told_again(passes: ForwardPasses, clock: list[float]) -> None:
    passes.on_pass(WAVE)
    passes.repeat(busy=True)
    assert len(told(passes)) == 1, "it was told just now"
    clock[0] += REPEAT_SECONDS
    passes.repeat(busy=True)
    again = told(passes)[-1]
    assert (again["queued_sum_prefill_tokens"], again["wall_time_secs"]) == (900, 0.0)
    assert again["scheduled_num_prefill_requests"] == 0


def test_what_was_given_up_waits_no_more(passes: ForwardPasses, clock: list[float]) -> None:
    passes.on_pass(WAVE)
    clock[0] += REPEAT_SECONDS
    passes.repeat(busy=False)
    assert len(told(passes)) == 1, "that it is idle Dynamo's publisher says itself"
    passes.repeat(busy=True)
    assert told(passes)[-1]["queued_sum_prefill_tokens"] == 0


def test_without_a_publisher_requests_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no event plane")

    monkeypatch.setattr(forward_passes, "FpmDirectPublisher", fails)
    passes = ForwardPasses()
    passes.on_pass(WAVE)
    passes.open(FakeEndpoint())
    passes.on_pass(WAVE)
    passes.close()
    assert "no planner can scale by load: no event plane" in caplog.text


def test_closed_it_says_nothing(passes: ForwardPasses) -> None:
    publisher = passes._publisher
    passes.close()
    passes.on_pass(WAVE)
    passes.close()
    assert publisher.published == []
    assert not publisher.open
