"""Mistakes planted in the logic of leader, followers and ownership: the simulator notices each of them."""

from __future__ import annotations

import pytest

from tests.simulator.mutants import MUTANTS, SEEDS
from tests.simulator.mutation import Mutant


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name, marks=[pytest.mark.soak] if each.late else []) for each in MUTANTS],
)
def test_a_planted_mistake_is_noticed(mutant: Mutant) -> None:
    assert mutant.caught(SEEDS) is not None, f"no schedule of {SEEDS} shows it"
