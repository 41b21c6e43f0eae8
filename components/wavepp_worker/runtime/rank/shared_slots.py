"""A rank's activations in memory of its GPU that the next rank reads: two slots, one written while one is read.

Streams wait for streams of the other process, by events that both have opened. An event is waited for as it was last
recorded, so the host of each side tells the other that it was, in messages of some bytes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch

from wavepp_worker.errors import EngineDead, PositionMismatch, StepTimeout, WaveppError
from wavepp_worker.model.device.cuda_device import await_event
from wavepp_worker.runtime.protocol.slots import SlotRead, SlotsOffered, SlotsTaken, SlotWritten
from wavepp_worker.runtime.protocol.waves import TensorMeta
from wavepp_worker.runtime.rank import gpu_sharing
from wavepp_worker.runtime.rank.slot_link import SlotLink

SLOTS = 2
ALIGNMENT = 256
"""Bytes: where each tensor of a slot begins, as torch's allocator has it."""


class CannotShare(WaveppError):
    """Two ranks cannot use the same memory of a GPU; the message says why."""


def slot_bytes(sizes: Iterable[int]) -> int:
    """Of a slot for tensors of so many bytes; both sides calculate it."""
    needed = sum(map(_aligned, sizes))
    # Powers of two, so that waves that grow step by step do not have it made anew for each.
    return 1 << max(0, needed - 1).bit_length()


class SlotWriter:
    """The sending side."""

    def __init__(self, link: SlotLink, device: torch.device, timeout: float) -> None:
        """``timeout``: seconds that the next rank may take for anything."""
        self._link = link
        self._device = device
        self._timeout = timeout
        self._leaving = torch.cuda.Stream(device)
        self._written = gpu_sharing.make_moments(SLOTS)
        self._read: Sequence[torch.cuda.Event] = ()
        self._slots: tuple[torch.Tensor, ...] = ()
        self._bytes = 0
        self._waves = 0
        self._taken = 0

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Queue a copy of a wave that the device has computed; waits for the next rank to be within two waves.

        Raises:
            CannotShare: a wave is larger than any before, and more memory cannot be shared.
            EngineDead: the next rank does not take it.
        """
        sizes = [tensor.nbytes for tensor in tensors]
        if (needed := slot_bytes(sizes)) > self._bytes:
            self._make(needed)
        if self._waves - self._taken == SLOTS:
            self._await_taken()
        slot = self._waves % SLOTS
        with torch.cuda.stream(self._leaving):
            self._leaving.wait_event(self._read[slot])
            for tensor, room in zip(tensors, _rooms(self._slots[slot], sizes), strict=True):
                room.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
                # Its memory is the other stream's: it goes to nobody before it is copied.
                tensor.record_stream(self._leaving)
            self._written[slot].record(self._leaving)
        self._link.send(SlotWritten(wave=self._waves))
        self._waves += 1

    def await_all_taken(self, seconds: float | None = None) -> None:
        """Wait, so long for each if not the link's time, until the next rank has queued copies of all waves."""
        while self._taken < self._waves:
            self._await_taken(seconds)

    def close(self, seconds: float) -> None:
        """Let what was written be read, for so long at most."""
        end = time.monotonic() + seconds
        with contextlib.suppress(EngineDead, PositionMismatch, StepTimeout):
            self.await_all_taken(seconds)
            self._await_read(max(0.0, end - time.monotonic()))
        self._link.close()

    def _make(self, size: int) -> None:
        self.await_all_taken()
        # What is let go of must not be read any more.
        self._await_read(self._timeout)
        self._slots, self._bytes = (), 0
        try:
            # Of this stream's memory, as kernels may be about to use what other streams let go of.
            with torch.cuda.stream(self._leaving):
                memory = gpu_sharing.allocate(SLOTS * size, self._device)
            offer = SlotsOffered(
                memory=gpu_sharing.share(memory), written=tuple(each.ipc_handle() for each in self._written)
            )
        except RuntimeError as error:
            self._link.send(SlotsOffered(memory=None, problem=first_line(error)))
            raise CannotShare(first_line(error)) from error
        self._link.send(offer)
        answer = self._link.receive(SlotsTaken, "open memory that this rank shares")
        if answer.problem:
            raise CannotShare(answer.problem)
        self._read = gpu_sharing.open_moments(torch.device("cuda", answer.device), answer.read)
        self._slots, self._bytes = memory.split(size), size

    def _await_taken(self, timeout: float | None = None) -> None:
        answer = self._link.receive(SlotRead, "take what this rank has sent", timeout)
        if answer.wave != self._taken:
            raise PositionMismatch(f"wave {answer.wave} of this edge is said to be read, not {self._taken}")
        self._taken += 1

    def _await_read(self, seconds: float) -> None:
        for event in self._read:
            await_event(event, seconds, "the next rank has not read a wave")


class SlotReader:
    """The receiving side."""

    def __init__(self, link: SlotLink, device: torch.device) -> None:
        self._link = link
        self._device = device
        self._arriving = torch.cuda.Stream(device)
        self._read = gpu_sharing.make_moments(SLOTS)
        self._written: Sequence[torch.cuda.Event] = ()
        self._slots: tuple[torch.Tensor, ...] = ()
        self._bytes = 0
        self._waves = 0

    def read(self, metas: Sequence[TensorMeta]) -> list[torch.Tensor]:
        """A wave's tensors; kernels that are queued from now on find them there.

        Raises:
            CannotShare: a wave is larger than any before, and more memory cannot be shared.
            EngineDead: the rank before does not send it.
        """
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._arriving):
            # Made on this stream, whose memory no kernel of a wave uses any more.
            tensors = [
                torch.empty(meta.shape, dtype=getattr(torch, meta.dtype), device=self._device)
                for meta in metas
            ]
        sizes = [tensor.nbytes for tensor in tensors]
        if (needed := slot_bytes(sizes)) > self._bytes:
            self._open(needed)
        came = self._link.receive(SlotWritten, "send activations that it has announced")
        if came.wave != self._waves:
            raise PositionMismatch(f"wave {came.wave} of this edge came, not {self._waves}")
        slot = self._waves % SLOTS
        with torch.cuda.stream(self._arriving):
            self._arriving.wait_event(self._written[slot])
            for tensor, room in zip(tensors, _rooms(self._slots[slot], sizes), strict=True):
                tensor.copy_(room.view(tensor.dtype).view(tensor.shape), non_blocking=True)
            self._read[slot].record(self._arriving)
        computing.wait_stream(self._arriving)
        for tensor in tensors:
            tensor.record_stream(computing)
        self._link.send(SlotRead(wave=self._waves))
        self._waves += 1
        return tensors

    def close(self) -> None:
        self._slots = ()
        self._link.close()

    def _open(self, size: int) -> None:
        self._slots, self._bytes = (), 0
        offer = self._link.receive(SlotsOffered, "share memory for a larger wave")
        if offer.memory is None:
            raise CannotShare(offer.problem)
        try:
            slots = gpu_sharing.open_shared(offer.memory).split(size)
            written = gpu_sharing.open_moments(torch.device("cuda", offer.memory.device), offer.written)
            taken = SlotsTaken(
                device=self._device.index or 0, read=tuple(each.ipc_handle() for each in self._read)
            )
            if len(slots) != SLOTS or len(written) != SLOTS:
                raise RuntimeError(f"{len(slots)} slots of {size} bytes were shared, not {SLOTS}")
        except RuntimeError as error:
            self._link.send(SlotsTaken(problem=first_line(error)))
            raise CannotShare(first_line(error)) from error
        self._link.send(taken)
        self._slots, self._written, self._bytes = slots, written, size


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _rooms(slot: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Where each tensor is in a slot."""
    begins = accumulate(map(_aligned, sizes), initial=0)
    return [slot[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


def first_line(error: BaseException) -> str:
    """What a message about an error can hold of it: torch tells of CUDA's on many."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
