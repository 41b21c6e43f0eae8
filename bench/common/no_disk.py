"""What a rank without a disk tier says of it, for benchmarks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from wavepp_worker.cache.moves import Copy


class NoDisk:
    """The part of ``Tiers`` that is about a disk, or a GPU; a subclass adds ``run``."""

    def last_run(self, window: int, blocks: Sequence[int]) -> int:
        return 0

    def follow(self, runs: int) -> None:
        return None

    def under_way(self, runs: int) -> bool:
        return False

    def prefetch(self, request_id: str, copies: Sequence[Copy]) -> Sequence[Copy]:
        return ()

    def drop_prefetched(self, request_id: str) -> None:
        return None

    def keep_on_disk(self, copies: Collection[Copy]) -> None:
        return None

    def switched_off(self) -> Sequence[int]:
        return ()
