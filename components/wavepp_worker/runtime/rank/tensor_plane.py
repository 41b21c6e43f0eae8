"""Activations from a rank to the next without the socket plane: point to point by ``torch.distributed``.

Which wave a tensor is of says the header, which goes over the socket plane as ever. Who sends a header sends its
tensors next, in its order, and who receives one receives them before it takes another: a pair of ranks keeps the order
of what it sends (NCCL: of its communicator; Gloo: of a tag).

Each pair of neighbours is a process group of its own, as a rank's sending thread need not be its receiving one. No two
ranks share two groups, so no order in which their operations run can make a circle that waits for itself.

Written after the documentation of torch 2.13 and NCCL; with Gloo it runs in the tests, with NCCL nobody has run it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from wavepp_worker.errors import ConfigError, EngineDead
from wavepp_worker.runtime.protocol.waves import TensorMeta

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 3.0
"""How long what was sent may be on its way when a rank stops, and the library may take to take its connections down;
after that both are left to the end of the process."""
GIVE_WAY_SECONDS = 1.0
"""How long a rank that lost its neighbour leaves it to its engine to see that one's end, which says more, and to end
all ranks."""
_SOCKETS = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""What both libraries listen on: of a replica, all ranks are on this host."""


class TensorPlane(Protocol):
    """One rank's edges, to the next rank and from the one before."""

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have a wave's tensors sent, at once; they must not be written to afterwards."""

    def receive(self, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
        """What the rank before has sent of a wave; kernels that are queued from now on find it there."""

    def close(self) -> None:
        """Let what was sent arrive, and take the connections down; bounded in time."""


def open_tensor_plane(
    backend: str, rank: int, ranks: int, device: torch.device, meeting: Path, timeout: float
) -> TensorPlane:
    """Meet the other ranks and try each edge with a tensor; all ranks call it.

    Args:
        backend: ``nccl`` or ``gloo``.
        device: where the tensors are: a GPU of this rank's own, or the CPU.
        meeting: a file, of this replica alone, by which the ranks find each other.
        timeout: seconds that they, and later any tensor, may take.

    Raises:
        ConfigError: the ranks cannot reach each other so.
    """
    os.environ.update(_SOCKETS)
    try:
        store = dist.FileStore(str(meeting), ranks)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout)
        )
        edges = [dist.new_group([sender, sender + 1]) for sender in range(ranks - 1)]
        before, after = edges[rank - 1] if rank else None, edges[rank] if rank < ranks - 1 else None
        make = HostPlane if backend == "gloo" else GpuPlane
        plane: TensorPlane = make(before, after, device, 2 * ranks, timeout)
        _try(plane, before, after, device)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"activations: the ranks of this replica do not reach each other by {backend} "
            f"({str(error).splitlines()[0]}); set activations to socket"
        ) from error
    return plane


def _try(plane: TensorPlane, before: Any, after: Any, device: torch.device) -> None:
    """Connect both edges, which the first tensor does, and see it arrive."""
    greeting = torch.arange(2, dtype=torch.float32, device=device)
    if before is not None:
        (came,) = plane.receive([TensorMeta("greeting", "float32", (2,))])
        if came.tolist() != [0.0, 1.0]:
            raise RuntimeError(f"a tensor of 0 and 1 arrived as {came.tolist()}")
    if after is not None:
        plane.send([greeting])


class HostPlane:
    """Tensors in host memory, by Gloo, over TCP of loopback. Implements ``TensorPlane``."""

    def __init__(self, before: Any, after: Any, device: torch.device, waves: int, timeout: float) -> None:
        """``waves``: that may be in flight; who sends one more can rely on the first having arrived."""
        self._before = before
        self._after = after
        self._device = device
        self._waves = waves
        self._timeout = timeout
        self._leaving: deque[list[tuple[Any, torch.Tensor]]] = deque()

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        if len(self._leaving) >= self._waves:
            for work, _ in self._leaving.popleft():
                self._wait(work, "to take what this rank has sent")
        try:
            # Gloo reads from them until it is done, and keeps no reference.
            self._leaving.append([(_sent(tensor, self._after), tensor) for tensor in tensors])
        except RuntimeError as error:
            raise _gone("to take what this rank sends", error) from error

    def receive(self, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
        tensors = [_room(meta, self._device) for meta in metas]
        for tensor in tensors:
            try:
                work = _asked(tensor, self._before)
            except RuntimeError as error:
                raise _gone("to send activations that it has announced", error) from error
            self._wait(work, "to send activations that it has announced")
        return tensors

    def close(self) -> None:
        _leave(self._drain)

    def _drain(self) -> None:
        """Or the next rank would have the header of a wave, and nothing else."""
        for work, _ in (each for wave in self._leaving for each in wave):
            work.wait(timedelta(seconds=LEAVE_SECONDS))

    def _wait(self, work: Any, what: str) -> None:
        try:
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise _gone(what, error) from error


class GpuPlane:
    """Tensors on a GPU, by NCCL; the host waits for none of them. Implements ``TensorPlane``.

    ``wait`` without a time has the current stream wait, not the host. NCCL ends the process if something takes longer
    than the group's time limit, or if the other side is lost.
    """

    def __init__(self, before: Any, after: Any, device: torch.device, waves: int, timeout: float) -> None:
        """Arguments as of ``HostPlane``."""
        del waves, timeout
        self._before = before
        self._after = after
        self._device = device
        self._arriving = torch.cuda.Stream(device)
        self._leaving = torch.cuda.Stream(device)

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """The device has computed them: NCCL waits for the stream at hand, which must not be that of further waves."""
        with torch.cuda.stream(self._leaving):
            for tensor in tensors:
                _sent(tensor, self._after).wait()
                # Their memory is the other stream's: it goes to nobody before they are sent.
                tensor.record_stream(self._leaving)

    def receive(self, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._arriving):
            # Made on this stream, whose memory no kernel of a wave uses any more.
            tensors = [_room(meta, self._device) for meta in metas]
            works = [_asked(tensor, self._before) for tensor in tensors]
        for work, tensor in zip(works, tensors, strict=True):
            work.wait()
            tensor.record_stream(computing)
        return tensors

    def close(self) -> None:
        _leave(self._leaving.synchronize)


def _leave(drain: Callable[[], object]) -> None:
    """In a thread that is left to itself if it takes too long: neither library bounds what it waits for here."""

    def leave() -> None:
        # Who was to take it may have left already.
        with contextlib.suppress(RuntimeError):
            drain()
        dist.destroy_process_group()

    thread = threading.Thread(target=leave, name="leave", daemon=True)
    thread.start()
    thread.join(LEAVE_SECONDS)
    if thread.is_alive():
        logger.warning(
            "connections for activations are left to the end of this process, as they do not close"
        )


def _sent(tensor: torch.Tensor, group: Any) -> dist.Work:
    work = dist.isend(tensor, group=group, group_dst=1)
    assert work is not None, "this rank is in the group"
    return work


def _asked(tensor: torch.Tensor, group: Any) -> dist.Work:
    work = dist.irecv(tensor, group=group, group_src=0)
    assert work is not None, "this rank is in the group"
    return work


def _room(meta: TensorMeta, device: torch.device) -> torch.Tensor:
    return torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=device)


def _gone(what: str, error: RuntimeError) -> EngineDead:
    time.sleep(GIVE_WAY_SECONDS)
    return EngineDead(
        f"the neighbouring rank, which was {what}, has died or hangs ({str(error).splitlines()[0]})"
    )
