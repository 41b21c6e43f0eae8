"""What the ranks are asked next."""

from __future__ import annotations

import pytest
from wavepp_worker.runtime.admission.work import Work
from wavepp_worker.runtime.protocol.rounds import Admit


@pytest.mark.parametrize(
    "work", [Work(hint=("a",)), Work(prepare=(Admit("a", 0),)), Work(reconcile=(Admit("a", 0),))]
)
def test_a_round_is_worth_it_for_any_question(work: Work) -> None:
    assert work
    assert not Work(exempt=True), "about nobody"
