"""What one rank process is told when it is spawned; the engine computes it, nothing in it is optional."""

from __future__ import annotations

import msgspec


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of one rank process, JSON on its standard input.

    Attributes:
        layers: ``(first, end)`` of this rank's layers.
        blocks: KV blocks of this rank.
        commands: address rank 0 takes commands from.
        events: address all ranks send events to.
        rounds: addresses of the rounds plane, one per follower, in rank order.
        data: addresses of the data plane, one per rank: where it receives.
        wait: seconds any wait inside the worker may take before it is an error.
    """

    rank: int
    ranks: int
    model: str
    model_id: str
    layers: tuple[int, int]
    dtype: str
    device: str
    threads: int
    block: int
    blocks: int
    chunk: int
    max_batch: int
    host: str
    handoff: str
    handoff_timeout: float
    commands: str
    events: str
    rounds: tuple[str, ...]
    data: tuple[str, ...]
    wait: float

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.ranks - 1
