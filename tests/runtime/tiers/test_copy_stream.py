"""Copies beside the waves of a GPU: which streams wait for which, by a fake of ``torch.cuda``."""

from __future__ import annotations

import threading

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.runtime.tiers import copy_stream
from wavepp_worker.runtime.tiers.copy_stream import CopyStream

from tests.support.fake_cuda import GPU, FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch, "copies")


def test_copies_are_queued_beside_the_waves_and_touch_blocks_after_those_before_them(cuda: FakeCuda) -> None:
    stream = CopyStream(GPU)
    with stream.run():
        cuda.note("from host memory")
        stream.touch_blocks()
        cuda.note("to blocks")
        stream.touch_blocks()
        cuda.note("to more blocks")
    assert stream.runs == 1
    assert cuda.calls == [
        ("moment", "compute"),
        ("from host memory", "copies"),
        ("wait for a moment of compute", "copies"),
        ("to blocks", "copies"),
        ("to more blocks", "copies"),
        ("moment", "copies"),
    ]


def test_only_waves_that_follow_wait_and_only_once(cuda: FakeCuda) -> None:
    stream = CopyStream(GPU)
    for _ in range(3):
        with stream.run():
            stream.touch_blocks()
    cuda.calls.clear()
    stream.follow(0)
    assert cuda.calls == []
    for runs in (2, 1, 2):
        stream.follow(runs)
    assert cuda.calls == [("wait for a moment of copies", "compute")], "the second is after the first"
    stream.follow(3)
    assert len(cuda.calls) == 2


def test_who_follows_what_is_done_waits_for_nothing_and_nothing_is_kept_of_it(cuda: FakeCuda) -> None:
    stream = CopyStream(GPU)
    for _ in range(100):
        with stream.run():
            stream.touch_blocks()
        cuda.ended = True
    assert len(stream._queued) == 1
    cuda.calls.clear()
    stream.follow(stream.runs)
    assert cuda.calls == []


def test_a_run_is_under_way_until_it_is_done_or_waves_wait_for_it(cuda: FakeCuda) -> None:
    stream = CopyStream(GPU)
    for _ in range(3):
        with stream.run():
            stream.touch_blocks()
    assert not stream.under_way(0)
    assert stream.under_way(1)
    stream.follow(2)
    assert not stream.under_way(2), "waves that are queued now come after it"
    assert stream.under_way(3)
    cuda.ended = True
    assert not stream.under_way(3)


def test_between_looking_and_waiting_nobody_is_told_that_it_is_ordered(cuda: FakeCuda) -> None:
    """With ``ownership=none`` WAVE asks while LOOP has waves follow."""
    stream, told = CopyStream(GPU), []
    with stream.run():
        stream.touch_blocks()
    asks = threading.Thread(target=lambda: told.append(stream.under_way(1)))

    def query() -> bool:
        if not asks.ident:
            asks.start()
            asks.join(0.05)
        return False

    stream._queued[0][1].query = query  # type: ignore[method-assign]
    wait_event = cuda._compute.wait_event
    cuda._compute.wait_event = lambda event: (wait_event(event), told.append("waits"))  # type: ignore[method-assign]
    stream.follow(1)
    asks.join(5)
    assert told == ["waits", False]


def test_the_host_can_wait_for_one_run(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_stream, "MAX_SECONDS", 0.01)
    stream = CopyStream(GPU)
    for _ in range(2):
        with stream.run():
            stream.touch_blocks()
    cuda.calls.clear()
    stream._queued[0][1].query = lambda: True  # type: ignore[method-assign]
    stream.wait(1)
    stream.wait(0)
    with pytest.raises(StepTimeout):
        stream.wait(2)
    assert cuda.calls == [], "nothing that was queued since is waited for"
    with stream.run(), pytest.raises(StepTimeout):
        stream.wait(3)


def test_a_run_that_failed_is_one(cuda: FakeCuda) -> None:
    stream = CopyStream(GPU)
    with pytest.raises(KeyError), stream.run():
        raise KeyError
    cuda.calls.clear()
    stream.follow(1)
    assert cuda.calls == [("wait for a moment of copies", "compute")]


def test_the_host_waits_for_what_this_run_has_queued_as_well_but_not_for_ever(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_stream, "MAX_SECONDS", 0.01)
    stream = CopyStream(GPU)
    with stream.run():
        cuda.note("to host memory")
        cuda.calls.clear()
        with pytest.raises(StepTimeout, match="has not copied blocks"):
            stream.wait()
        assert cuda.calls == [("moment", "copies")]
        cuda.ended = True
        stream.wait()


def test_on_the_cpu_there_is_nothing_to_follow() -> None:
    stream = CopyStream(torch.device("cpu"))
    with stream.run():
        stream.touch_blocks()
    stream.follow(stream.runs)
    stream.wait()
    assert stream.runs == 1
