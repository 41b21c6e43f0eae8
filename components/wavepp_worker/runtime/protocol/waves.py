"""The data plane, each rank with the next, the last with rank 0: waves with tensors, and their ends."""

from __future__ import annotations

import msgspec

from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.message import Message


class Span(msgspec.Struct, frozen=True):
    """One request's chunk in a wave: tokens ``[start, start + length)``; ``last`` ends the prompt."""

    request_id: str
    start: int
    length: int
    last: bool


class TensorMeta(msgspec.Struct, frozen=True):
    """How to read the bytes of one tensor of the activations."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the last rank chooses the first token of a prompt by.

    Attributes:
        banned: tokens it must not be.
        seen: packed ids of the prompt's tokens, each once; empty unless they count for a repetition penalty.
        allowed: a bit for each token that it may be, that of token 0 lowest; empty for all.
    """

    sampling: SamplingParams
    banned: tuple[int, ...] = ()
    seen: bytes = b""
    allowed: bytes = b""


class WaveHeader(Message, frozen=True):
    """Rank s to rank s + 1, followed by one frame per tensor.

    Attributes:
        endings: one for each span that ends a prompt, in their order; rank 0 adds them as it executes the wave.
        compute: seconds each earlier rank spent in this wave's forward, in rank order.
        begun: monotonic seconds at which each earlier rank began with it, if one of its requests is traced.
    """

    wave_id: int
    spans: tuple[Span, ...]
    endings: tuple[Ending, ...] = ()
    tensors: tuple[TensorMeta, ...] = ()
    compute: tuple[float, ...] = ()
    begun: tuple[float, ...] = ()


class WaveDone(Message, frozen=True):
    """Last rank to rank 0: every rank has executed the wave.

    Attributes:
        compute: seconds each rank took for it, in rank order.
        ended: when the last did, monotonic seconds, which are the same for all ranks of a host.
    """

    wave_id: int
    compute: tuple[float, ...] = ()
    ended: float = 0.0


DataMessage = WaveHeader | WaveDone
