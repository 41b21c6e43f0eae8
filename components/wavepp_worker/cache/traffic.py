"""Counts what became of the reusable blocks of one window."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavepp_worker.cache.moves import Tier


def _none() -> list[int]:
    return [0] * len(Tier)


@dataclass
class TierTraffic:
    """Blocks since the start, by tier.

    Attributes:
        offloaded: that came down to a tier.
        onboarded: that were copied from a tier up to the device.
        evicted: that lost their content on a tier, as others needed the room.
        lost: that were forgotten on a tier, as their bytes, or those of a block before them, are damaged.
    """

    offloaded: list[int] = field(default_factory=_none)
    onboarded: list[int] = field(default_factory=_none)
    evicted: list[int] = field(default_factory=_none)
    lost: list[int] = field(default_factory=_none)
