"""What one request holds of a rank's cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wavepp_worker.cache.results import Holds
from wavepp_worker.cache.windows.share import Share


@dataclass
class Reservation:
    """What one request holds.

    Attributes:
        keys: of the full blocks of its prompt.
        prompt_tokens: length of its prompt.
        end: its endpoint, in blocks.
        shares: what it holds of each window.
        state: how far it is.
        writer: the request whose blocks it waits for; it holds none of the prefix until they are complete.
        readers: requests that wait for its blocks.
        begun: tokens of a sequence that are computed or being computed, where snapshots are taken.
        computed: tokens of a sequence that are computed, or that the wave at hand computes for others in it.
    """

    keys: Sequence[bytes]
    prompt_tokens: int
    end: int
    shares: list[Share]
    state: Holds = "lease"
    writer: str | None = None
    readers: list[str] = field(default_factory=list)
    begun: int = 0
    computed: int = 0
