"""Ranks that share memory of a GPU: over a fake of CUDA, in threads and, in ``test_tensor_plane``, in processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import zmq
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.protocol.slots import SharedMemory
from wavepp_worker.runtime.protocol.waves import TensorMeta
from wavepp_worker.runtime.rank import gpu_sharing
from wavepp_worker.runtime.rank.ipc_plane import open_ipc_plane
from wavepp_worker.runtime.rank.shared_slots import SLOTS

from tests.support.fake_sharing import fake_sharing

BOUND = 10.0
META = TensorMeta("hidden", "float32", (5,))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return fake_sharing(monkeypatch)


def replica(ranks: int, meeting: Path, work: Callable[[int, Any], object], **values: Any) -> list[Any]:
    """What each rank's ``work`` returns with its plane, or the error that opening it raised."""
    came: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        with zmq.Context() as context:
            try:
                plane = open_ipc_plane(
                    context, rank, ranks, str(meeting), torch.device("cpu"), 1000, BOUND, **values
                )
            except ConfigError as error:
                came[rank] = error
                return
            came[rank] = work(rank, plane)
            if plane is not None:
                plane.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * BOUND)
    assert not any(thread.is_alive() for thread in threads)
    return came


@pytest.mark.parametrize("ranks", [2, 4])
def test_waves_pass_all_ranks(ranks: int, fake: SimpleNamespace, scratch: Path) -> None:
    def work(rank: int, plane: Any) -> list[float]:
        got = []
        for wave in range(20):
            (tensor,) = plane.receive([META]) if rank else (torch.full((5,), float(wave)),)
            if rank < ranks - 1:
                plane.send([tensor + 1])
            got.append(tensor.sum().item() / 5)
        return got

    came = replica(ranks, scratch / "edge", work, or_none=False)
    assert came == [[wave + rank for wave in range(20)] for rank in range(ranks)]
    assert fake.calls.count("computing is waited for") == 2 * SLOTS * (ranks - 1)


def of_one_edge(monkeypatch: pytest.MonkeyPatch, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have one of the edges of a replica open something else."""
    opened, first = gpu_sharing.open_shared, threading.Event()

    def open_(shared: SharedMemory) -> torch.Tensor:
        if first.is_set():
            return opened(shared)
        first.set()
        return act(opened(shared))

    monkeypatch.setattr(gpu_sharing, "open_shared", open_)


def unreachable(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("peer access is not supported\nbetween these two")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("act", "why"),
    [(unreachable, "peer access is not supported"), (torch.zeros_like, "a wave of 1 arrived as another")],
    ids=["cannot be opened", "is another's"],
)
def test_if_one_edge_cannot_share_none_does_and_all_ranks_know(
    act: Callable[[torch.Tensor], torch.Tensor],
    why: str,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    of_one_edge(monkeypatch, act)
    assert replica(4, scratch / "edge", lambda _, plane: plane, or_none=True) == [None] * 4
    assert len(caplog.messages) == 4
    assert set(caplog.messages) == {
        f"the ranks of this replica cannot share memory of their GPUs ({why}), so activations go through page-locked "
        "memory and a socket"
    }


@pytest.mark.usefixtures("fake")
def test_who_asked_for_it_is_told_what_to_set(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one_edge(monkeypatch, unreachable)
    for error in replica(3, scratch / "edge", lambda _, plane: plane, or_none=False):
        assert str(error) == (
            "activations: the ranks of this replica cannot share memory of their GPUs (peer access is not supported); "
            "set activations to socket"
        )


def test_memory_that_is_not_there_is_no_end_of_the_replica(fake: SimpleNamespace, scratch: Path) -> None:
    fake.limit = 100
    assert replica(3, scratch / "edge", lambda _, plane: plane, or_none=True) == [None] * 3
