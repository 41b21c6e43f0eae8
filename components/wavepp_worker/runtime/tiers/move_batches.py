"""Which block moves can be copied at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from wavepp_worker.cache.moves import Move, Tier


def batches(moves: Sequence[Move], most: Callable[[int], int]) -> Iterator[list[Move]]:
    """Runs of moves between the same two tiers that can be copied at once with the same result as one by one.

    Within one direction no move writes what another reads, so only two writes of one slot are apart.

    Args:
        most: how many blocks of a window, by its index, may be copied at once; a batch has at least one.
    """
    batch: list[Move] = []
    targets: set[int] = set()
    direction: tuple[int, Tier, Tier] | None = None
    for move in moves:
        its = (move.window, move.source[0], move.target[0])
        if batch and (its != direction or move.target[1] in targets or len(batch) >= most(move.window)):
            yield batch
            batch, targets = [], set()
        direction = its
        batch.append(move)
        targets.add(move.target[1])
    if batch:
        yield batch


def runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """``(index, first slot, count)`` of each stretch of consecutive slots."""
    start = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[at - 1] + 1:
            yield start, slots[start], at - start
            start = at
