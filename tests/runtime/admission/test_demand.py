"""What admitting waiting requests would take; in blocks of two tokens, a letter each."""

from __future__ import annotations

from collections.abc import Callable

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.results import Standing
from wavepp_worker.runtime.admission.demand import Demand, demands
from wavepp_worker.runtime.admission.in_the_making import InTheMaking
from wavepp_worker.runtime.admission.waiting import Waiting

from tests.runtime.admission.test_order import keys

BLOCK = 2


def looked_at(
    *texts: str, present: int = 0, held: int = 0, made: str = ""
) -> tuple[list[Demand], list[Waiting]]:
    """Of prompts of whole blocks and one token more, of each of which so many blocks are there."""
    waiting = [
        Waiting(0.0, BLOCK * len(text) + 1, number, keys(text), len(text))
        for number, text in enumerate(texts)
    ]
    standing: Callable[[BlockKeys, int], Standing] = lambda keys, tokens: Standing(  # noqa: E731
        BLOCK * present, BLOCK * held
    )
    making = InTheMaking()
    if made:
        making.admitted("writer", keys(made), 0)
    return demands(waiting, BLOCK, standing, making.writer), waiting


def test_a_request_computes_what_is_not_there_and_takes_what_nobody_holds() -> None:
    [found], _ = looked_at("abcd", present=3, held=1)
    assert found == Demand(takes=7, computes=3, shared=0, alone=7, present=3, group=0)
    [found], _ = looked_at("abcd", present=4, held=4)
    assert (found.takes, found.computes) == (1, 1)


def test_those_that_want_the_same_next_block_share_what_they_have_in_common() -> None:
    found, _ = looked_at("abcx", "zzzz", "abcy", held=1, present=2)
    assert [each.group for each in found] == [0, 1, 0]
    assert [(each.takes, each.computes) for each in found] == [(3 + 4 / 2, 3 + 2 / 2), (7, 5), (5, 4)]
    assert [(each.shared, each.alone) for each in found] == [(4, 7), (0, 7), (4, 7)]


def test_what_an_admitted_request_will_compute_counts_as_held() -> None:
    found, _ = looked_at("abcx", "abyy", made="abc")
    assert [(each.takes, each.computes, each.present) for each in found] == [(3, 3, 3), (5, 5, 2)]


def test_a_token_to_compute_costs_more_than_a_token_of_room() -> None:
    [there], [request] = looked_at("abcd", present=4, held=0)
    [missing], _ = looked_at("abcd")
    [in_use], _ = looked_at("abcd", present=4, held=4)
    costs = [each.cost(request.prompt_tokens) for each in (in_use, there, missing)]
    assert costs == sorted(costs)
    assert there.takes == missing.takes
