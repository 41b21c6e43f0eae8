"""Copies that a thread waits for, beside the waves of a GPU, by a fake of ``torch.cuda``."""

from __future__ import annotations

import asyncio

import pytest
import torch
from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.device import side_stream
from wavepp_worker.model.device.side_stream import SideStream

from tests.support.fake_cuda import GPU, FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch, "side")


def test_copies_come_after_what_they_are_of_and_waves_do_not_wait_for_them(cuda: FakeCuda) -> None:
    side = SideStream(GPU)
    cuda.ended = True
    written = side.now()
    with side.copies(written):
        cuda.note("copy")
    assert cuda.calls == [
        ("moment", "compute"),
        ("wait for a moment of compute", "side"),
        ("copy", "side"),
        ("moment", "side"),
    ]


def test_who_copies_waits_until_it_is_done_but_not_for_ever(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_stream, "MAX_SECONDS", 0.01)
    side = SideStream(GPU)
    with pytest.raises(StepTimeout, match="has not computed or copied KV"), side.copies(side.now()):
        pass
    with pytest.raises(StepTimeout, match="has not computed or copied KV"):
        side.wait(side.now())
    cuda.ended = True
    side.wait(side.now())
    with side.copies(None):
        pass


def test_copies_of_which_only_some_were_queued_are_waited_for_as_well(cuda: FakeCuda) -> None:
    """Whoever is told of the failure gives their places to others."""
    side = SideStream(GPU)
    cuda.ended = True
    with pytest.raises(MemoryError), side.copies(None):
        raise MemoryError
    assert cuda.calls == [("moment", "side")]


def test_an_event_loop_goes_on_until_a_moment_is_reached_but_not_for_ever(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_stream, "MAX_SECONDS", 0.05)
    side = SideStream(GPU)

    async def both() -> None:
        waiting = asyncio.create_task(side.reached(side.now()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        cuda.ended = True
        await waiting
        await side.reached(None)
        cuda.ended = False
        with pytest.raises(StepTimeout, match="has not computed or copied KV"):
            await side.reached(side.now())

    asyncio.run(both())
    assert set(cuda.used) == {GPU}, "each thread begins with the first GPU"


def test_on_the_cpu_all_is_done_where_it_stands() -> None:
    side = SideStream(torch.device("cpu"))
    assert side.now() is None
    with side.copies(side.now()):
        pass
    side.wait(None)
