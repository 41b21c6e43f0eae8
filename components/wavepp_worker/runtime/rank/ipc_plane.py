"""Activations from a rank to the next on the same GPU, or on another of the same host, by memory that both open.

CUDA's interprocess handles; where the GPUs reach each other, the copy between them is one from peer to peer. Nobody has
run it on a GPU: tests have files in place of its memory, and a fake of its streams.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import zmq

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.runtime.protocol.slots import EdgesTried
from wavepp_worker.runtime.protocol.waves import TensorMeta
from wavepp_worker.runtime.rank.shared_slots import SLOTS, SlotReader, SlotWriter, first_line
from wavepp_worker.runtime.rank.slot_link import SlotLink
from wavepp_worker.runtime.rank.tensor_plane import LEAVE_SECONDS, TensorPlane

logger = logging.getLogger(__name__)


class IpcPlane:
    """Tensors on a GPU, in slots that two ranks share. Implements ``TensorPlane``."""

    def __init__(self, before: SlotReader | None, after: SlotWriter | None) -> None:
        self._before = before
        self._after = after

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        assert self._after is not None, "the last rank sends nothing"
        self._after.write(tensors)

    def receive(self, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
        assert self._before is not None, "the first rank receives nothing"
        return self._before.read(metas)

    def close(self) -> None:
        if self._after is not None:
            self._after.close(LEAVE_SECONDS)
        if self._before is not None:
            self._before.close()


def open_ipc_plane(
    context: zmq.Context[zmq.Socket[bytes]],
    rank: int,
    ranks: int,
    meeting: str,
    device: torch.device,
    wave_bytes: int,
    timeout: float,
    *,
    or_none: bool,
) -> TensorPlane | None:
    """Meet the ranks beside this one and try each slot; all ranks call it, and all get a plane or none does.

    Args:
        meeting: beginning of the names of files, in a directory of this replica alone, by which neighbours meet.
        device: the GPU of this rank.
        wave_bytes: of the largest wave that is expected.
        timeout: seconds that the others, and later any wave, may take.
        or_none: whether there is another way, and None tells of it.

    Raises:
        ConfigError: ranks cannot share memory, and there is no other way.
        EngineDead: another rank does not come.
    """

    def edge(sender: int, *, binds: bool) -> SlotLink:
        return SlotLink(context, f"ipc://{meeting}-{sender}", timeout, binds=binds)

    links = (
        edge(rank - 1, binds=False) if rank else None,
        edge(rank, binds=True) if rank < ranks - 1 else None,
    )
    before = None if links[0] is None else SlotReader(links[0], device)
    after = None if links[1] is None else SlotWriter(links[1], device, timeout)
    problem = _agreed(_tried(before, after, device, wave_bytes), *links)
    if not problem:
        return IpcPlane(before, after)
    IpcPlane(before, after).close()
    sentence = f"the ranks of this replica cannot share memory of their GPUs ({problem})"
    if not or_none:
        raise ConfigError(f"activations: {sentence}; set activations to socket")
    logger.warning("%s, so activations go through page-locked memory and a socket", sentence)
    return None


def _tried(before: SlotReader | None, after: SlotWriter | None, device: torch.device, wave_bytes: int) -> str:
    """Sends and receives enough waves to use each slot twice; what went wrong, or nothing."""
    meta = TensorMeta("greeting", "uint8", (wave_bytes,))
    numbers = range(1, 2 * SLOTS + 1)
    problem = ""
    try:
        if before is not None:
            for number in numbers:
                (came,) = before.read([meta])
                if not bool((came == number).all()):
                    problem = problem or f"a wave of {number} arrived as another"
    except (WaveppError, RuntimeError) as error:
        problem = first_line(error)
    try:
        if after is not None:
            for number in numbers:
                wave = torch.full(meta.shape, number, dtype=torch.uint8, device=device)
                torch.cuda.current_stream(device).synchronize()
                after.write([wave])
            after.await_all_taken()
    except (WaveppError, RuntimeError) as error:
        problem = problem or first_line(error)
    return problem


def _agreed(problem: str, before: SlotLink | None, after: SlotLink | None) -> str:
    """The first problem that any rank met: what those before met comes with what this one did to the last, and back."""
    was_to = "say whether it can share memory"
    if before is not None:
        problem = before.receive(EdgesTried, was_to).problem or problem
    if after is not None:
        after.send(EdgesTried(problem=problem))
        problem = after.receive(EdgesTried, was_to).problem
    if before is not None:
        before.send(EdgesTried(problem=problem))
    return problem
