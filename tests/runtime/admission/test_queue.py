"""Who is prepared next: first come, first served, within limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.results import Standing
from wavepp_worker.runtime.admission.in_the_making import MOST_REMEMBERED
from wavepp_worker.runtime.admission.order import CacheView, PrefixOrder, Surroundings
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.queue import (
    MAX_HINT_AGE_SECONDS,
    MAX_LOOKED_UP_AGAIN,
    AdmissionQueue,
)
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.admission.waiting_line import WaitingLine
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.protocol.whereabouts import Preparing, Queued

from tests.support.cache_bench import BLOCK, keys_of
from tests.support.calls import calls_during


def test_requests_beyond_the_limit_get_hints_but_no_lease() -> None:
    queue = AdmissionQueue(limit=2)
    for name in "abc":
        queue.arrive(name, 100, 0.0)
    work = queue.work(0.0)
    assert (work.hint, work.prepare) == (("a", "b", "c"), ())
    queue.apply(RoundOutcome(candidates=(Admit("a", 16), Admit("b", 0), Admit("c", 0))), 0.0)
    assert queue.work(0.0).prepare == (Admit("a", 16), Admit("b", 0))
    assert not queue.work(0.0)
    queue.apply(RoundOutcome(admitted=(Admit("a", 16),), lower=(Admit("b", 0),)), 0.0)
    assert queue.work(0.0).reconcile == (Admit("b", 0),)
    queue.leave("a")
    assert queue.work(0.0).prepare == (Admit("c", 0),)
    queue.check()


def test_what_those_will_compute_that_are_not_admitted_counts_as_far_as_it_is_known() -> None:
    queue = AdmissionQueue(limit=1)
    assert queue.waiting_tokens() == 0
    for name in "abc":
        queue.arrive(name, 100, 0.0)
    assert queue.waiting_tokens() == 300
    queue.apply(RoundOutcome(candidates=(Admit("a", 16), Admit("b", 40), Admit("c", 0))), 0.0)
    assert queue.waiting_tokens() == 244
    queue.work(0.0)
    assert queue.waiting_tokens() == 244, "a is being prepared"
    queue.apply(RoundOutcome(admitted=(Admit("a", 16),)), 0.0)
    assert queue.waiting_tokens() == 160


def test_what_those_that_wait_have_in_common_is_computed_once() -> None:
    queue = AdmissionQueue(limit=1, block_size=BLOCK)
    for name, tokens in {"a": [1] * 40, "b": [2] * 40, "c": [1] * 16 + [3] * 24, "d": [1] * 16}.items():
        queue.arrive(name, len(tokens), 0.0, BlockKeys.of(keys_of(tokens)))
    assert queue.waiting_tokens() == 40 + 40 + 24 + BLOCK, "the last block of a prompt is always computed"


def test_who_is_held_back_by_the_order_is_not_about_to_come() -> None:
    class Chooses:
        """An order that lets one at a time be prepared."""

        wave_tokens = BLOCK

        def heads(self, waiting: Iterable[Waiting], now: float, around: Surroundings) -> list[Waiting]:
            return list(waiting)[-1:]

        def arrived(self, entry: Waiting) -> None: ...

        def admitted(self, entry: Waiting, endpoint: int) -> None: ...

    queue = AdmissionQueue(limit=4, order=cast("PrefixOrder", Chooses()))
    for number, name in enumerate("abc"):
        queue.arrive(name, 100 + number, 0.0)
    cache = cast("CacheView", SimpleNamespace(leaves_snapshots=False, standing=lambda *_: Standing(0, 0)))
    queue.work(0.0, cache=cache)
    assert queue.waiting_tokens() == 102
    queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in "abc")), 0.0)
    assert [admit.request_id for admit in queue.work(0.0, cache=cache).prepare] == ["c"]
    assert queue.waiting_tokens() == 102, "once, as it is being prepared"
    queue.withdraw("c")
    assert queue.waiting_tokens() == 201, "who is to come is to be looked at again"


def test_the_head_is_tried_again_alone_and_beyond_the_headroom_once_nobody_holds_a_lease() -> None:
    """Promise 9: a request bigger than the headroom is admitted alone."""
    queue = AdmissionQueue(limit=4)
    for name in ("big", "small"):
        queue.arrive(name, 100, 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(candidates=(Admit("big", 0), Admit("small", 0))), 0.0)
    assert not queue.work(0.0).exempt
    queue.apply(RoundOutcome(failed=("big", "small")), 0.0)
    assert queue.due(0.0) > 0.0, "nothing was freed"
    queue.freed()
    work = queue.work(0.001)
    assert (work.prepare, work.exempt) == ((Admit("big", 0),), True)


def test_nobody_is_prepared_while_an_earlier_request_goes_down() -> None:
    """Promise 9: its demand grows meanwhile, and the later one would take that room for ever."""
    queue = AdmissionQueue(limit=4)
    for name in "ab":
        queue.arrive(name, 16, 0.0)
    queue.apply(RoundOutcome(candidates=(Admit("a", 11),)), 0.0)
    assert queue.work(0.0).prepare == (Admit("a", 11),)
    queue.apply(RoundOutcome(candidates=(Admit("b", 11),), lower=(Admit("a", 10),)), 0.0)
    work = queue.work(0.0)
    assert (work.reconcile, work.prepare) == ((Admit("a", 10),), ())
    queue.apply(RoundOutcome(admitted=(Admit("a", 10),)), 0.0)
    assert queue.work(0.0).prepare == (Admit("b", 11),)


def test_no_round_is_spent_on_requests_that_do_not_fit_rank_0() -> None:
    queue = AdmissionQueue(limit=4, headroom_tokens=50)
    for name in "abc":
        queue.arrive(name, 100, 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(candidates=(Admit("a", 20), Admit("b", 0), Admit("c", 0))), 0.0)
    assert queue.work(0.0, unreserved_tokens=229.0).prepare == (Admit("a", 20),), (
        "80 tokens, 100 more exceed 179"
    )
    queue.apply(RoundOutcome(admitted=(Admit("a", 20),)), 0.0)
    assert not queue.work(0.0, unreserved_tokens=149.0)
    assert queue.due(0.0) > 0.0, "nothing to do until something is freed, or a while has passed"
    queue.freed()
    queue.leave("a")
    assert not queue.work(0.0, unreserved_tokens=99.0)
    queue.freed()
    work = queue.work(0.0, unreserved_tokens=100.0)
    assert (work.prepare, work.exempt) == ((Admit("b", 0),), True), "alone, it need not leave the headroom"
    queue.check()


def test_in_lockstep_too_nobody_is_prepared_while_a_request_goes_down() -> None:
    """Who failed beside it would take the room for which it goes down, and both would fail for ever."""
    queue = AdmissionQueue(limit=4, lockstep=True)
    for name in "ab":
        queue.arrive(name, 16, 0.0)
    assert queue.work(0.0).hint == ("a", "b")
    queue.apply(RoundOutcome(candidates=(Admit("a", 9), Admit("b", 9))), 0.0)
    assert queue.work(0.0).prepare == (Admit("a", 9), Admit("b", 9))
    queue.apply(RoundOutcome(lower=(Admit("a", 7),), failed=("b",)), 0.0)
    work = queue.work(0.0)
    assert (work.reconcile, work.prepare) == ((Admit("a", 7),), ())


def test_in_lockstep_too_who_failed_is_asked_about_alone_once_nothing_runs() -> None:
    """Of two that go down together, each failed on another rank, and both would again, for ever."""
    queue = AdmissionQueue(limit=4, lockstep=True)
    for name in "ab":
        queue.arrive(name, 16, 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(candidates=(Admit("a", 9), Admit("b", 9))), 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(lower=(Admit("a", 7), Admit("b", 7))), 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(failed=("a", "b")), 0.0)
    assert queue.work(1.0).hint == ("a",)
    queue.apply(RoundOutcome(candidates=(Admit("a", 9),)), 1.0)
    assert queue.work(1.0).prepare == (Admit("a", 9),)


def test_of_many_whose_candidates_are_old_a_round_looks_up_as_many_as_may_be_prepared_next() -> None:
    """One a round made admission of a deep queue as slow as its rounds."""
    queue = AdmissionQueue(limit=100)
    names = [f"r{number}" for number in range(100)]
    for name in names:
        queue.arrive(name, 10, 0.0)
    queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in queue.work(0.0).hint)), 0.0)
    now, admitted, rounds = 2 * MAX_HINT_AGE_SECONDS, list[str](), 0
    while len(admitted) < len(names):
        work = queue.work(now)
        assert len(work.hint) <= MAX_LOOKED_UP_AGAIN
        now += 0.001
        queue.apply(
            RoundOutcome(candidates=tuple(Admit(name, 0) for name in work.hint), admitted=work.prepare), now
        )
        admitted += [each.request_id for each in work.prepare]
        rounds += 1
        queue.check()
    assert admitted == names
    assert rounds == 1 + -(-len(names) // MAX_LOOKED_UP_AGAIN)


def test_an_old_candidate_is_looked_up_before_anybody_behind_it_is_prepared() -> None:
    queue = AdmissionQueue(limit=4)
    old = 2 * MAX_HINT_AGE_SECONDS
    for name, hinted in (("old", 0.0), ("fresh", old), ("older", 0.0)):
        queue.arrive(name, 10, 0.0)
        queue.apply(RoundOutcome(candidates=(Admit(name, 0),)), hinted)
    work = queue.work(old)
    assert (work.hint, work.prepare) == (("old", "older"), ())
    queue.apply(RoundOutcome(candidates=(Admit("old", 0), Admit("older", 0))), old)
    assert [each.request_id for each in queue.work(old).prepare] == ["old", "fresh", "older"]


def test_who_was_looked_up_before_a_writer_of_its_next_block_ended_is_looked_up_again_once() -> None:
    """One rank may not have had yet what the writer has left on all of them."""
    queue = AdmissionQueue(limit=2, block_size=BLOCK)
    shared = [1] * 2 * BLOCK
    for name, tokens in {"writer": shared, "reader": [*shared, 2], "other": [3] * 9}.items():
        queue.arrive(name, len(tokens), 0.0, BlockKeys.of(keys_of(tokens)))
    queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in queue.work(0.0).hint)), 0.0)
    first = queue.work(0.0).prepare
    assert [each.request_id for each in first] == ["writer"], "the reader waits until it is admitted"
    queue.apply(RoundOutcome(admitted=first), 0.0)
    queue.ended("writer")
    work = queue.work(0.0)
    assert (work.hint, work.prepare) == (("reader",), ()), "other was looked up as early, but shares nothing"
    queue.apply(RoundOutcome(candidates=(Admit("reader", BLOCK),)), 0.0)
    prepared = [(each.request_id, each.endpoint) for each in queue.work(0.0).prepare]
    assert prepared == [("reader", BLOCK), ("other", 0)], "what is lost is lost"
    queue.check()


def test_who_was_looked_up_before_more_writers_ended_than_are_remembered_is_looked_up_again_once() -> None:
    """A wave of many short requests ends all of them at once, and the one that made a block first."""
    queue = AdmissionQueue(limit=MOST_REMEMBERED + 2, block_size=BLOCK)
    shared = [1] * 2 * BLOCK
    prompts = {"writer": shared, **{f"{at}": [at + 2] * BLOCK for at in range(MOST_REMEMBERED)}}
    for name, tokens in prompts.items():
        queue.arrive(name, len(tokens), 0.0, BlockKeys.of(keys_of(tokens)))
    queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in queue.work(0.0).hint)), 0.0)
    queue.apply(RoundOutcome(admitted=queue.work(0.0).prepare), 0.0)
    reader = [*shared, 2]
    queue.arrive("reader", len(reader), 0.0, BlockKeys.of(keys_of(reader)))
    assert queue.work(0.0).hint == ("reader",)
    for name in prompts:
        queue.ended(name)
    queue.apply(RoundOutcome(candidates=(Admit("reader", 0),)), 0.0)
    work = queue.work(0.0)
    assert (work.hint, work.prepare) == (("reader",), ())
    queue.apply(RoundOutcome(candidates=(Admit("reader", 2 * BLOCK),)), 0.0)
    assert [each.endpoint for each in queue.work(0.0).prepare] == [2 * BLOCK]


def test_preparing_twice_as_many_at_once_takes_about_twice_as_much() -> None:
    def calls(requests: int) -> int:
        queue = AdmissionQueue(limit=requests, block_size=BLOCK)
        for at in range(requests):
            queue.arrive(str(at), 2 * BLOCK, 0.0, BlockKeys.of(keys_of([at] * 2 * BLOCK)))
        queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in queue.work(0.0).hint)), 0.0)
        count, work = calls_during(lambda: queue.work(0.0))
        assert len(work.prepare) == requests
        return count

    assert calls(600) < 2.5 * calls(300)


def test_arrivals_of_two_priorities_take_as_much_however_many_wait() -> None:
    def calls(requests: int) -> int:
        queue = AdmissionQueue(limit=1)
        return calls_during(
            lambda: [queue.arrive(str(at), 8, 0.0, priority=at % 2) for at in range(requests)]
        )[0]

    # Those that wait are looked at for what they have in common, so many at most.
    assert calls(1000) - calls(500) < 2.5 * (calls(500) - calls(250))


class CountedLine(WaitingLine):
    """Counts how many of those that wait are looked at, one after the other."""

    looked_at = 0

    def items(self) -> Iterator[tuple[str, Waiting]]:
        for item in super().items():
            self.looked_at += 1
            yield item

    def values(self) -> Iterator[Waiting]:
        return (entry for _, entry in self.items())

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.items())


class EmptyCache:
    """As ``PrefixOrder`` looks at it; there is room for two requests."""

    leaves_snapshots = False

    def free_tokens(self) -> float:
        return 16.0

    def standing(self, keys: BlockKeys, prompt_tokens: int) -> Standing:
        return Standing(0, 0)


@pytest.mark.parametrize("by_prefix", [False, True], ids=["fcfs", "prefix"])
def test_a_round_looks_at_as_many_however_many_wait(by_prefix: bool) -> None:
    def looked_at(requests: int) -> int:
        line, order = CountedLine(), PrefixOrder(10**9, BLOCK, 1, 8) if by_prefix else None
        queue = AdmissionQueue(limit=1, block_size=BLOCK, order=order, _waiting=line)
        for at in range(requests):
            queue.arrive(str(at), 8, 0.0)
        queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in queue.work(0.0).hint)), 0.0)
        line.looked_at = 0
        queue.due(0.0)
        queue.work(0.0, 16.0, EmptyCache())
        return line.looked_at

    assert 0 < looked_at(800) == looked_at(400)


def test_old_candidates_that_would_not_fit_are_not_looked_up_again() -> None:
    queue = AdmissionQueue(limit=4)
    for name in "abc":
        queue.arrive(name, 10, 0.0)
        queue.apply(RoundOutcome(candidates=(Admit(name, 0),)), 0.0)
    assert queue.work(2 * MAX_HINT_AGE_SECONDS, unreserved_tokens=25.0).hint == ("a", "b")


def test_ranks_hear_where_those_that_wait_will_leave_a_prompt_also_when_it_goes_down() -> None:
    queue = AdmissionQueue(limit=4, block_size=BLOCK)
    for number, tokens in enumerate(([1] * 12, [1] * 8 + [2] * 4, [1] * 8 + [3] * 4, [1] * 4 + [4] * 8)):
        queue.arrive(f"r{number}", 12, 0.0, BlockKeys.of(keys_of(tokens)))
    candidates = (Admit("r0", 2), *(Admit(name, 0) for name in ("r1", "r2", "r3")))
    queue.apply(RoundOutcome(candidates=candidates), 0.0)
    assert queue.work(0.0).prepare == (Admit("r0", 2, branches=(8, 4, 10, 12)),)
    queue.apply(RoundOutcome(lower=(Admit("r0", 0),)), 0.0)
    assert queue.work(0.0).reconcile == (Admit("r0", 0, branches=(8, 4, 10, 12)),)
    queue.apply(RoundOutcome(admitted=(Admit("r0", 0),)), 0.0)
    assert queue.work(0.0).prepare == tuple(
        Admit(name, end, "r0", branches=(10, 12)) for name, end in (("r1", 8), ("r2", 8), ("r3", 4))
    )
    queue.check()


def test_where_blocks_in_the_making_are_not_reused_nobody_expects_branches() -> None:
    queue = AdmissionQueue(limit=4)
    for name in "ab":
        queue.arrive(name, 12, 0.0, BlockKeys.of(keys_of([1] * 12)))
    queue.apply(RoundOutcome(candidates=(Admit("a", 0), Admit("b", 0))), 0.0)
    assert queue.work(0.0).prepare == (Admit("a", 0), Admit("b", 0))


class Snapshots:
    """Implements ``CacheView`` of a rank with all the room there is."""

    leaves_snapshots = True

    def free_tokens(self) -> float:
        return 1e6

    def standing(self, keys: BlockKeys, prompt_tokens: int) -> Standing:
        del keys, prompt_tokens
        return Standing(0, 0)


def test_where_it_is_not_known_whether_a_writer_leaves_a_snapshot_one_request_finds_out_for_all() -> None:
    """If it does not, that one computes what they share, and the others read from it."""
    queue, cache = AdmissionQueue(limit=8, block_size=BLOCK), Snapshots()
    writer = [1] * 8

    def arrive(*names: str) -> None:
        for name in names:
            queue.arrive(name, 12, 0.0, BlockKeys.of(keys_of([*writer, *name.encode() * 4])))
        queue.apply(RoundOutcome(candidates=tuple(Admit(name, 0) for name in names)), 0.0)

    def prepared() -> tuple[Admit, ...]:
        return queue.work(0.0, cache=cache).prepare

    arrive("w")
    assert prepared() == (Admit("w", 0, branches=(10, 12)),)
    queue.apply(RoundOutcome(admitted=(Admit("w", 0),)), 0.0)
    arrive("a", "b", "c")
    assert prepared() == (Admit("a", 8, "w", branches=(10, 12)),)
    queue.apply(RoundOutcome(lower=(Admit("a", 0),)), 0.0)
    assert queue.work(0.0, cache=cache).reconcile == (Admit("a", 0, branches=(8, 10, 12)),)
    queue.apply(RoundOutcome(admitted=(Admit("a", 0, branches=(8, 10, 12)),)), 0.0)
    assert prepared() == (Admit("b", 8, "a", branches=(10, 12)), Admit("c", 8, "a", branches=(10, 12)))
    queue.check()


def test_requests_without_a_writer_wait_for_nobody_to_find_out() -> None:
    queue = AdmissionQueue(limit=8, block_size=BLOCK)
    for name in "ab":
        queue.arrive(name, 12, 0.0, BlockKeys.of(keys_of([*name.encode() * 12])))
    queue.apply(RoundOutcome(candidates=(Admit("a", 0), Admit("b", 0))), 0.0)
    assert queue.work(0.0, cache=Snapshots()).prepare == (
        Admit("a", 0, branches=(10, 12)),
        Admit("b", 0, branches=(10, 12)),
    )


def test_where_requests_are_is_told_of_those_that_are_not_admitted() -> None:
    queue = AdmissionQueue(limit=2, headroom_tokens=50)
    queue.arrive("a", 100, 0.0)
    queue.arrive("b", 100, 1.0)
    queue.arrive("urgent", 100, 2.0, priority=3)
    queue.arrive("c", 300, 3.0)
    everybody = ["a", "b", "urgent", "c", "unknown"]

    def told(now: float = 10.0, room: float = 400.0) -> dict[str, Queued | Preparing]:
        return {each.request_id: each for each in queue.whereabouts(everybody, now, room)}

    found = told()
    assert list(found) == ["urgent", "a", "b", "c"]
    assert {name: each.because for name, each in found.items() if isinstance(each, Queued)} == {
        "urgent": "looking up",
        "a": "ahead",
        "b": "ahead",
        "c": "ahead",
    }
    last = found["c"]
    assert isinstance(last, Queued)
    assert (last.ahead, last.higher, last.priority, last.seconds, last.first) == (3, 1, 0, 7.0, "urgent")
    queue.apply(RoundOutcome(candidates=tuple(Admit(name, 16) for name in everybody[:4])), 10.0)
    small = told(room=100.0)["urgent"]
    assert isinstance(small, Queued)
    assert (small.because, small.needs, small.room) == ("room", 84, 50)
    assert [each.request_id for each in queue.work(10.0, 400.0).prepare] == ["urgent", "a"]
    found = told(now=10.5)
    assert found["a"] == Preparing(request_id="a", seconds=0.5, endpoint=16)
    waiting = found["c"]
    assert isinstance(waiting, Queued)
    assert (waiting.because, waiting.ahead, waiting.higher, waiting.holding, waiting.limit) == (
        "places",
        1,
        0,
        2,
        2,
    )
    queue.apply(RoundOutcome(admitted=(Admit("urgent", 16),), lower=(Admit("a", 0),)), 11.0)
    assert told(now=12.0)["a"] == Preparing(request_id="a", seconds=2.0, endpoint=0, lowered=True)
    assert "urgent" not in told()
    queue.check()


def test_a_request_that_waits_for_one_that_is_being_prepared_is_told_its_name() -> None:
    queue = AdmissionQueue(limit=4, block_size=BLOCK)
    keys = BlockKeys.of(keys_of(list(range(4 * BLOCK))))
    for name in ("first", "second"):
        queue.arrive(name, 4 * BLOCK + 1, 0.0, keys)
    queue.apply(RoundOutcome(candidates=(Admit("first", 0), Admit("second", 0))), 0.0)
    assert [each.request_id for each in queue.work(0.0).prepare] == ["first"]
    [second] = queue.whereabouts(["second"], 0.0, 1000.0)
    assert isinstance(second, Queued)
    assert (second.because, second.writer) == ("writer", "first")
    queue.apply(RoundOutcome(admitted=(Admit("first", 0),)), 0.0)
    [admit] = queue.work(0.0).prepare
    assert admit.writer == "first"
    [second] = queue.whereabouts(["second"], 0.0, 1000.0)
    assert second == Preparing(request_id="second", seconds=0.0, endpoint=4 * BLOCK, writer="first")


def test_an_admission_says_when_its_parts_ended_and_how_often_it_was_tried() -> None:
    queue = AdmissionQueue(limit=4)
    queue.arrive("a", 100, 10.0)
    queue.work(10.0)
    queue.apply(RoundOutcome(candidates=(Admit("a", 16),)), 10.5)
    queue.work(10.51)
    queue.apply(RoundOutcome(failed=("a",)), 10.6)
    queue.freed()
    assert queue.work(11.0).hint == ("a",), "what was looked up long ago is looked up again"
    queue.apply(RoundOutcome(candidates=(Admit("a", 16),)), 11.1)
    queue.work(11.11)
    (admission,) = queue.apply(RoundOutcome(admitted=(Admit("a", 16),)), 12.0)
    assert (admission.at, admission.attempts) == (12.0, 2)
    parts = (admission.discovery, admission.queued, admission.admission)
    assert [round(part, 6) for part in parts] == [0.5, 0.51, 1.49]
