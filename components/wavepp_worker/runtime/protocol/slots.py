"""Between a rank and the next that share memory of a GPU: where it is, and which wave is in which of its slots."""

from __future__ import annotations

import msgspec

from wavepp_worker.runtime.protocol.message import Message


class SharedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a GPU that another process may open, as ``torch.UntypedStorage`` describes it.

    Attributes:
        device: the GPU's number.
        handle: CUDA's, of the piece that torch has allocated.
        size: in bytes, of what is shared.
        offset: in that piece.
        counter: a file in which torch counts who uses it.
        counter_offset: in that.
        event: CUDA's handle of the moment after which it may be read.
        awaits_event: whether that has to be waited for.
    """

    device: int
    handle: bytes
    size: int
    offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    awaits_event: bool


class SlotsOffered(Message, frozen=True):
    """Rank s to rank s + 1: write waves to be read there from now on.

    Attributes:
        memory: all slots, one behind the other; None if it cannot be shared.
        written: CUDA's handles of the moments at which each slot was written.
        problem: why it cannot be shared.
    """

    memory: SharedMemory | None
    written: tuple[bytes, ...] = ()
    problem: str = ""


class SlotsTaken(Message, frozen=True):
    """The answer.

    Attributes:
        device: number of the GPU that reads them.
        read: CUDA's handles of the moments at which each slot was read.
        problem: why they cannot be read.
    """

    device: int = 0
    read: tuple[bytes, ...] = ()
    problem: str = ""


class SlotWritten(Message, frozen=True):
    """Rank s to rank s + 1: the copy of a wave to the next slot is queued; ``wave`` counts them."""

    wave: int


class SlotRead(Message, frozen=True):
    """The answer: the copy of it from there is queued."""

    wave: int


class EdgesTried(Message, frozen=True):
    """To the next rank, what this one and those before met; from the last one back to all, what any met."""

    problem: str = ""


SlotMessage = SlotsOffered | SlotsTaken | SlotWritten | SlotRead | EdgesTried
