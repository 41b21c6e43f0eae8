"""Activations by ``torch.distributed`` between real processes, with Gloo; of GPUs with a fake of ``torch.cuda``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.runtime.protocol.waves import TensorMeta
from wavepp_worker.runtime.rank import tensor_plane
from wavepp_worker.runtime.rank.tensor_plane import LEAVE_SECONDS, GpuPlane

from tests.support.fake_cuda import FakeCuda
from tests.support.tensor_plane_rank import WAVES, first_tensors
from tests.support.warm_processes import WarmPopen

LOOPBACK = {"0100007F", "00000000000000000000000001000000"}
BOUND = 1.0
"""Seconds that a plane waits in tests of faults."""
SLACK = 6.0
MODULE = "tests.support.tensor_plane_rank"


@pytest.fixture
def start() -> Iterator[Callable[..., list[WarmPopen]]]:
    """Starts the ranks of a replica."""
    started: list[WarmPopen] = []

    def start(scenario: str, meeting: Path, ranks: int, kind: str = "host") -> list[WarmPopen]:
        own = [
            WarmPopen(
                [sys.executable, "-m", MODULE, scenario, str(rank), str(ranks), str(meeting), kind],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        started.extend(own)
        return own

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def said(process: WarmPopen) -> Any:
    assert process.stdout is not None
    text = process.stdout.read()
    process.wait(10)
    return json.loads(text) if text else None


def expected(ranks: int) -> list[Any]:
    return [
        [wave, {name: (tensor + ranks - 1).tolist() for name, tensor in first_tensors(wave).items()}]
        for wave in range(WAVES)
    ]


@pytest.mark.parametrize("kind", ["host", "gpu"])
def test_waves_arrive_as_they_were_sent_through_two_replicas_side_by_side(
    kind: str, start: Callable, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On loopback alone, whatever the environment wants."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "elsewhere")
    replicas = {ranks: start("waves", scratch / f"meeting-{ranks}", ranks, kind) for ranks in (3, 2)}
    for ranks, processes in replicas.items():
        *others, last = [said(process) for process in processes]
        assert last == expected(ranks)
        for addresses in others:
            assert addresses, "Gloo listens somewhere"
            assert set(addresses) <= LOOPBACK


def test_waves_arrive_in_another_process_by_memory_that_both_open(start: Callable, scratch: Path) -> None:
    """And no port is listened on."""
    *others, last = [said(process) for process in start("waves", scratch / "meeting", 4, "ipc")]
    assert last == expected(4)
    assert others == [[]] * 3


def test_a_neighbour_that_died_ends_the_wait_with_a_sentence(start: Callable, scratch: Path) -> None:
    _, waiting = start("lost", scratch / "meeting", 2)
    name, sentence, seconds = said(waiting)
    assert name == "EngineDead"
    assert (
        "the neighbouring rank, which was to send activations that it has announced, has died or hangs ("
        in sentence
    )
    assert seconds < BOUND + SLACK


def test_a_neighbour_that_is_silent_ends_the_wait_and_closing_is_bounded(
    start: Callable, scratch: Path
) -> None:
    _, waiting = start("silent", scratch / "meeting", 2)
    (name, sentence, seconds), closing, _ = said(waiting)
    assert (name, "has died or hangs" in sentence) == ("EngineDead", True)
    assert BOUND / 2 < seconds < BOUND + SLACK
    assert closing < LEAVE_SECONDS + SLACK


def test_sends_do_not_wait_for_who_takes_nothing_until_too_many_are_in_flight(
    start: Callable, scratch: Path
) -> None:
    sender, _ = start("deaf", scratch / "meeting", 2)
    (name, sentence, seconds), closing, sending, _ = said(sender)
    assert sending < BOUND
    assert (name, "to take what this rank has sent" in sentence) == ("EngineDead", True)
    assert seconds < BOUND + SLACK
    assert closing < LEAVE_SECONDS + SLACK


def test_a_rank_that_meets_nobody_says_so_and_what_to_do(start: Callable, scratch: Path) -> None:
    """Of three, the last never comes."""
    *there, last = start("silent", scratch / "meeting", 3)
    last.kill()
    for process in there:
        name, sentence = said(process)
        assert name == "ConfigError"
        assert sentence.startswith("activations: the ranks of this replica do not reach each other by gloo (")
        assert sentence.endswith("); set activations to socket")


class Recorder:
    """``isend`` and ``irecv`` that note on which stream they are asked for, and waited for."""

    def __init__(self, cuda: FakeCuda, patch: pytest.MonkeyPatch) -> None:
        self._cuda = cuda
        patch.setattr(tensor_plane.dist, "isend", lambda tensor, **to: self._asked("send", to))
        patch.setattr(tensor_plane.dist, "irecv", lambda tensor, **to: self._asked("receive", to))

    def _asked(self, what: str, to: dict[str, Any]) -> Recorder:
        self._cuda.note(f"{what} {to['group']}")
        return self

    def wait(self) -> None:
        """A time limit would have the host wait."""
        self._cuda.note("wait for it")


def test_on_a_gpu_streams_wait_and_the_host_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    Recorder(cuda, monkeypatch)
    plane = GpuPlane("before", "after", torch.device("cpu"), 4, 1.0)
    plane.send([torch.zeros(2)])
    assert cuda.calls == [("send after", "leaving"), ("wait for it", "leaving"), ("keep", "leaving")]
    cuda.calls.clear()
    (came,) = plane.receive([TensorMeta("hidden", "bfloat16", (3, 2))])
    assert (came.shape, came.dtype) == ((3, 2), torch.bfloat16)
    assert cuda.calls == [("receive before", "arriving"), ("wait for it", "compute"), ("keep", "compute")]
