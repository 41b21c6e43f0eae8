"""Copying batch by batch is the same as copying move by move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.cache.moves import Move, Tier
from wavepp_worker.runtime.tiers.move_batches import batches, runs

places = st.tuples(st.sampled_from(Tier), st.integers(0, 3))
moves = st.builds(lambda w, s, t: Move(w, 0, None, s, t), st.integers(0, 1), places, places).filter(
    lambda move: move.source[0] != move.target[0]
)


@given(st.lists(moves, max_size=20), st.integers(0, 4))
def test_a_batch_copied_at_once_is_its_moves_in_order(wanted: list[Move], most: int) -> None:
    one_by_one: dict[object, object] = {}
    at_once = dict(one_by_one)
    for move in wanted:
        one_by_one[move.window, move.target] = one_by_one.get(
            (move.window, move.source), (move.window, move.source)
        )
    for batch in batches(wanted, lambda window: most):
        assert len(batch) <= max(1, most)
        assert len({(move.window, move.source[0], move.target[0]) for move in batch}) == 1
        assert len({move.target for move in batch}) == len(batch), "a GPU would write them in any order"
        read = [at_once.get((move.window, move.source), (move.window, move.source)) for move in batch]
        at_once.update({(move.window, move.target): found for move, found in zip(batch, read, strict=True)})
    assert at_once == one_by_one


def test_neighbours_share_a_batch() -> None:
    wanted = [Move(0, 0, None, (Tier.DEVICE, at), (Tier.HOST, 9 - at)) for at in range(5)]
    assert [len(batch) for batch in batches(wanted, lambda window: 3)] == [3, 2]


@given(st.lists(st.integers(0, 9), max_size=12))
def test_runs_are_maximal_stretches(slots: list[int]) -> None:
    found = list(runs(slots))
    assert [first + at for _, first, count in found for at in range(count)] == slots
    assert all(slots[start] == first for start, first, _ in found)
    assert all(slots[start] != slots[start - 1] + 1 for start, _, _ in found[1:])
