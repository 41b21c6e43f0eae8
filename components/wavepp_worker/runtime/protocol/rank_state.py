"""What a rank holds at one moment, for people who look for a fault: no prompt, and no more than so many requests."""

from __future__ import annotations

import msgspec

from wavepp_worker.cache.results import CacheUse, EscrowSums, Holding, TierFigures
from wavepp_worker.runtime.protocol.message import Message

MOST_REQUESTS = 64
"""Most requests that a rank tells of, those that it has known longest."""


class LocalState(msgspec.Struct, frozen=True, kw_only=True):
    """One request on one rank.

    Attributes:
        request_id: as ranks know it: the caller's, and a number.
        prompt_tokens: length of its prompt.
        endpoint: tokens that all ranks reuse; None before they have agreed.
        position: next token that this rank computes.
        executed: no wave will touch its blocks any more.
        settled: no hand-off reads them any more.
        handoff: whether its KV is held for a decode worker.
        holding: what it holds of the cache; None for nothing.
    """

    request_id: str
    prompt_tokens: int
    endpoint: int | None
    position: int
    executed: bool
    settled: bool
    handoff: bool
    holding: Holding | None


class RankState(Message, frozen=True):
    """One rank: its requests, its reservations, its tiers.

    Attributes:
        known: how many requests it knows; ``requests`` are the first of them.
        use: the device blocks of its first window.
        escrows: what is reserved.
        tiers: blocks on device, in host memory and on disk.
        waves: executed since the start.
        busy: seconds that it computed since the start.
    """

    dump_id: int
    rank: int
    known: int
    requests: tuple[LocalState, ...]
    use: CacheUse
    escrows: EscrowSums
    tiers: tuple[TierFigures, ...]
    waves: int
    busy: float
