"""What a waiting request shares with others, in blocks of two tokens."""

from __future__ import annotations

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.next_blocks import NextBlocks
from wavepp_worker.runtime.admission.sharing import MAX_BRANCHES_FROM, Sharing
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.protocol.rounds import Admit

from tests.support.cache_bench import BLOCK, keys_of


def waiting(text: str, candidate: int = 0) -> Waiting:
    """A request with a block for each letter; the last one is always computed."""
    keys = BlockKeys.of(keys_of([ord(letter) for letter in text for _ in range(BLOCK)]))
    entry = Waiting(0.0, BLOCK * len(text), 1, keys, len(text) - 1)
    entry.candidate = candidate
    return entry


@pytest.fixture
def sharing() -> Sharing:
    """A request of "abcd" is admitted and computes all of it."""
    made = Sharing(BLOCK)
    made.admitted(Admit("w", 0, branches=(2 * BLOCK,)), waiting("abcd").keys)
    return made


def test_a_candidate_lies_where_an_admitted_request_will_have_computed_up_to(sharing: Sharing) -> None:
    assert sharing.candidate("r", waiting("abcx")) == Admit("r", 3 * BLOCK, "w")
    assert sharing.candidate("r", waiting("xyz", candidate=BLOCK)) == Admit("r", BLOCK)


def test_who_does_not_reuse_what_is_still_to_be_computed_shares_nothing() -> None:
    alone = Sharing(0)
    alone.admitted(Admit("w", 0), waiting("abcd").keys)
    assert alone.reusable(waiting("abcd").keys, 4 * BLOCK) == 0
    assert alone.candidate("r", waiting("abcx")) == Admit("r", 0)
    assert alone.branches(waiting("abcd"), 0, [waiting("abx")]) == ()
    assert not alone.made_by_another(waiting("abcx"), Admit("r", 0), NextBlocks([waiting("abcd")]))


def test_whose_next_block_another_is_prepared_to_compute_waits_for_it(sharing: Sharing) -> None:
    entry = waiting("pqr")
    preparing = {"o": waiting("xy"), "p": waiting("pqz")}
    ahead = NextBlocks(preparing.values())
    assert sharing.made_by_another(entry, Admit("r", 0), ahead)
    assert sharing.prepared_writer(entry, 0, preparing) == "p"
    assert not sharing.made_by_another(entry, Admit("r", 2 * BLOCK), ahead), "they part there"
    assert sharing.prepared_writer(entry, 2 * BLOCK, preparing) == ""


def test_only_so_many_of_those_that_wait_are_looked_at_for_branches(sharing: Sharing) -> None:
    others = [waiting("abx")] * MAX_BRANCHES_FROM
    assert sharing.branches(waiting("abcde"), 0, [*others, waiting("abcx")]) == (
        2 * BLOCK,
        4 * BLOCK,
        5 * BLOCK,
    )
    assert sharing.branches(waiting("abcde"), 0, [waiting("abcx"), *others])[1] == 3 * BLOCK


def test_a_prompt_leaves_what_is_needed_where_an_earlier_one_parted(sharing: Sharing) -> None:
    assert sharing.branches(waiting("abcde"), 0, [], 2 * BLOCK) == (2 * BLOCK, 4 * BLOCK, 5 * BLOCK)


def test_one_finds_out_for_all_whether_a_writer_leaves_what_resuming_needs(sharing: Sharing) -> None:
    known, unknown = Admit("a", 2 * BLOCK, "w"), Admit("a", 3 * BLOCK, "w")
    assert not sharing.probed_by_another(known, {("w", 2 * BLOCK)}), "it was asked to"
    assert sharing.probed_by_another(unknown, {("w", 3 * BLOCK)})
    assert not sharing.probed_by_another(unknown, set())


def test_an_aborted_writer_goes_on_as_far_as_its_readers_need(sharing: Sharing) -> None:
    sharing.reads(Admit("r", 3 * BLOCK, "w"))
    assert sharing.aborted("w") == 3 * BLOCK
    sharing.lowered(Admit("r", BLOCK))
    sharing.making.stopped_reading("r")
    assert sharing.take_lowered() == [("w", 0)]
