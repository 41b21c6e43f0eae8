"""When a traced prefill got how far, by moments and waves. Frozen and typed."""

from __future__ import annotations

import msgspec


class WaveTrace(msgspec.Struct, frozen=True, array_like=True):
    """One wave of a traced request, in monotonic seconds.

    Attributes:
        start, length: the request's tokens in it.
        begun: when each rank began with it, in rank order.
        compute: seconds each rank took for it.
        ended: when the last rank had computed it.
    """

    wave_id: int
    start: int
    length: int
    begun: tuple[float, ...]
    compute: tuple[float, ...]
    ended: float


class PrefillTrace(msgspec.Struct, frozen=True, kw_only=True):
    """When a traced prefill got how far, in monotonic seconds.

    Attributes:
        arrived: at rank 0.
        discovered: the ranks knew up to where each has its prefix.
        selected: the ranks were first asked to lease its prefix and to reserve room for the rest.
        admitted: all of them did, and committed.
        attempts: how often they were asked.
        answered: the first token was known.
    """

    arrived: float
    discovered: float
    selected: float
    admitted: float
    attempts: int
    waves: tuple[WaveTrace, ...]
    answered: float
