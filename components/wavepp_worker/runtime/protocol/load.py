"""What an engine, its ranks and its waves have done and have to do. Frozen and typed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wavepp_worker.cache.results import TierFigures


class RankLoad(msgspec.Struct, frozen=True):
    """What one rank did, and what its cache holds.

    Attributes:
        busy: seconds that it computed since the start.
        tiers: its blocks on device, in host memory and on disk; empty if it caches nothing.
        idle: seconds since the start in which it computed nothing, by cause.
    """

    busy: float
    tiers: tuple[TierFigures, ...]
    idle: Mapping[str, float] = {}


class PrefillPass(msgspec.Struct, frozen=True, kw_only=True):
    """A wave that has passed the pipeline, and what waited then.

    Attributes:
        requests: of which it computed tokens.
        tokens: that it computed.
        context_tokens: before those, whose KV it read.
        seconds: since the wave before it ended, or since its launch if that was later; those of all waves add up to
            the time in which some wave was in flight.
        queued_requests: that no wave carried.
        queued_tokens: of all requests, that no wave had computed or carried; of those not admitted the whole prompt.
    """

    requests: int
    tokens: int
    context_tokens: int
    seconds: float
    queued_requests: int
    queued_tokens: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Load and totals of an engine; ``used_blocks`` is of the fullest rank, ``total_blocks`` of the smallest.

    Attributes:
        queued: requests not admitted yet.
        running: admitted requests without an answer yet.
        holding: answered requests whose KV some rank still holds.
        last_wave_age: seconds since the rank that waited longest executed a wave.
        ranks: what each rank did, in rank order.
        waves_in_flight: between their launch and their end on the last rank.
        active: seconds since the start in which some wave was in flight.
    """

    queued: int
    running: int
    holding: int
    used_blocks: int
    total_blocks: int
    prompt_tokens: int
    reused_tokens: int
    finished: int
    failed: int
    waves: int
    rounds: int
    last_wave_age: float
    ranks: tuple[RankLoad, ...] = ()
    waves_in_flight: int = 0
    active: float = 0.0
