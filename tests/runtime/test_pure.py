"""The pure parts of the runtime: outcomes of rounds, greedy planning, the ring, the index feed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import AuditError, PositionMismatch, RequestTimeout
from wavepp_worker.runtime.admission.outcome import RoundOutcome, decide
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import ROUND_BYTES, RoundPlanner
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.planner import Lane
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.events import CacheChanges, StoredRun
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Admit, Claim, Plan, Vote
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable, check_span


def vote(rank: int, *claims: tuple[int, bool], hints: tuple[int, ...] = ()) -> Vote:
    return Vote(round_id=0, rank=rank, endpoints=hints, claims=tuple(Claim(*claim) for claim in claims))


def test_the_candidate_is_what_every_rank_believes_in() -> None:
    plan = Plan(round_id=0, hint=("a", "b"))
    outcome = decide(plan, [vote(0, hints=(64, 0)), vote(1, hints=(32, 16))])
    assert outcome.candidates == (Admit("a", 32), Admit("b", 0))


def test_a_request_is_admitted_where_all_ranks_committed_it() -> None:
    plan = Plan(round_id=0, prepare=(Admit("a", 32),))
    assert decide(plan, [vote(0, (32, True)), vote(1, (32, True))]).admitted == (Admit("a", 32),)


def test_different_endpoints_are_reconciled_downwards() -> None:
    """Promise 8: the richer ranks go back to what the poorest one pinned, even those that committed."""
    plan = Plan(round_id=0, prepare=(Admit("a", 48),))
    outcome = decide(plan, [vote(0, (48, True)), vote(1, (16, False)), vote(2, (32, False))])
    assert outcome == RoundOutcome(lower=(Admit("a", 16),))


def test_one_rank_without_room_makes_all_let_go_and_nobody_behind_overtakes() -> None:
    """S06, promises 8 and 9."""
    plan = Plan(round_id=0, prepare=(Admit("a", 0), Admit("b", 0), Admit("c", 0)))
    votes = [vote(0, (0, True), (0, True), (0, True)), vote(1, (0, True), (-1, False), (-1, False))]
    assert decide(plan, votes) == RoundOutcome(admitted=(Admit("a", 0),), failed=("b", "c"))


def test_a_lowered_request_whose_room_does_not_suffice_fails() -> None:
    plan = Plan(round_id=0, prepare=(Admit("new", 0),), reconcile=(Admit("a", 16),))
    outcome = decide(plan, [vote(0, (0, True), (16, True)), vote(1, (0, True), (16, False))])
    assert outcome == RoundOutcome(admitted=(Admit("new", 0),), failed=("a",))


def test_a_vote_that_does_not_answer_the_plan_stops_the_rank() -> None:
    with pytest.raises(PositionMismatch, match="rank 1 voted on 0 hints and 0 claims"):
        decide(Plan(round_id=0, prepare=(Admit("a", 0),)), [vote(0, (0, True)), vote(1)])


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
    queue.settled("a")
    assert queue.work(0.0).prepare == (Admit("c", 0),)
    queue.check()


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
    queue = AdmissionQueue(limit=4, headroom=50)
    for name in "abc":
        queue.arrive(name, 100, 0.0)
    queue.work(0.0)
    queue.apply(RoundOutcome(candidates=(Admit("a", 20), Admit("b", 0), Admit("c", 0))), 0.0)
    assert queue.work(0.0, room=229.0).prepare == (Admit("a", 20),), "80 tokens, 100 more exceed 179"
    queue.apply(RoundOutcome(admitted=(Admit("a", 20),)), 0.0)
    assert not queue.work(0.0, room=149.0)
    assert queue.due(0.0) > 0.0, "nothing to do until something is freed, or a while has passed"
    queue.freed()
    queue.settled("a")
    assert not queue.work(0.0, room=99.0)
    queue.freed()
    work = queue.work(0.0, room=100.0)
    assert (work.prepare, work.exempt) == ((Admit("b", 0),), True), "alone, it need not leave the headroom"
    queue.check()


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=6),
    budget=st.integers(1, 33),
)
def test_greedy_waves_cover_every_prompt_once_and_in_order(
    lengths: list[tuple[int, int]], budget: int
) -> None:
    lanes = [Lane(f"r{i}", start, start + length) for i, (start, length) in enumerate(lengths)]
    planner, position = GreedyPlanner(budget), {lane.request_id: lane.next for lane in lanes}
    waves = 0
    while spans := planner.plan(lanes):
        waves += 1
        tokens = sum(span.length for span in spans)
        assert tokens <= budget
        for span in spans:
            assert span.start == position[span.request_id]
            position[span.request_id] += span.length
        left = sum(lane.end - lane.next for lane in lanes)
        assert tokens == budget or left == 0, "a wave was not filled although work was left"
        assert len({span.request_id for span in spans}) == len(spans)
    assert all(position[lane.request_id] == lane.end for lane in lanes)
    assert waves == -(-sum(length for _, length in lengths) // budget)


def test_only_the_last_span_of_a_prompt_is_marked_last() -> None:
    lane = Lane("r", 16, 50)
    spans = [span for _ in range(4) for span in GreedyPlanner(16).plan([lane])]
    assert [(span.start, span.length, span.last) for span in spans] == [
        (16, 16, False),
        (32, 16, False),
        (48, 2, True),
    ]


def test_the_ring_is_bounded_ordered_and_knows_what_it_carries() -> None:
    ring = Ring(2)
    first = ring.launch((Span("a", 0, 4, False),))
    second = ring.launch((Span("a", 4, 4, True), Span("b", 0, 1, True)))
    assert ring.full
    with pytest.raises(ValueError, match="2 waves are in flight"):
        ring.launch((Span("c", 0, 1, True),))
    with pytest.raises(PositionMismatch, match="oldest wave in flight is 0"):
        ring.complete(second)
    ring.complete(first)
    assert ring.carries("a")
    assert ring.carries("b")
    ring.complete(second)
    assert not ring.carries("a")
    ring.check()


def table_with(name: str, tokens: int, endpoint: int) -> RequestTable:
    table = RequestTable()
    request = PrefillRequest(request_id=name, tokens=bytes(4 * tokens))
    table.announce(LocalRequest(request, [], position=endpoint))
    table.commit(name, endpoint)
    return table


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        (Span("r", 8, 4, False), "request r is scheduled at token 8, but this rank stands at token 16"),
        (Span("r", 16, 20, True), "its prompt has 32"),
        (Span("r", 16, 16, False), "its prompt has 32"),
        (Span("r", 16, 0, False), "its prompt has 32"),
        (Span("x", 0, 4, False), "has not admitted it"),
    ],
)
def test_a_follower_refuses_a_schedule_that_does_not_fit_its_state(span: Span, complaint: str) -> None:
    """S12, promise 12: it names the request and both positions instead of running on."""
    with pytest.raises(PositionMismatch, match=complaint):
        check_span(table_with("r", tokens=32, endpoint=16).committed(span, timeout=0.01), span)


def test_a_follower_that_is_behind_with_admission_waits_for_it() -> None:
    table = RequestTable()
    table.announce(LocalRequest(PrefillRequest(request_id="late", tokens=bytes(16)), []))
    timer = threading.Timer(0.05, lambda: table.commit("late", 0))
    timer.start()
    assert table.committed(Span("late", 0, 4, True), timeout=5).endpoint == 0


def test_parking_waits_for_the_wave_and_holds_the_next_one_back() -> None:
    gate = WaveGate()
    with gate.executing(1), pytest.raises(RequestTimeout, match="still executing"):
        gate.park(0.01)
    gate.park(1)
    with pytest.raises(RequestTimeout, match="still holds"), gate.executing(0.01):
        pass
    gate.resume()
    with gate.executing(0.01):
        pass


def run(*keys: int, parent: int | None = None, tokens: bytes = b"") -> StoredRun:
    return StoredRun(keys, parent, tokens)


def test_a_block_is_stored_when_the_last_rank_has_it_and_removed_when_the_first_loses_it() -> None:
    """Promise 15."""
    feed = IndexFeed(ranks=2, block=1)
    tokens = bytes([7, 0, 0, 0, 8, 0, 0, 0])
    assert feed.apply(CacheChanges(rank=0, stored=(run(1, 2, tokens=tokens),))) == []
    (stored,) = feed.apply(CacheChanges(rank=1, stored=(run(1, 2),)))
    assert (stored.stored, stored.parent, stored.tokens) == ((1, 2), None, tokens)
    (removed,) = feed.apply(CacheChanges(rank=1, removed=(2,)))
    assert removed.removed == (2,)
    assert feed.apply(CacheChanges(rank=0, removed=(2,))) == []
    with pytest.raises(AuditError, match="had not stored"):
        feed.apply(CacheChanges(rank=0, removed=(2,)))


@given(st.data())
def test_the_feed_equals_the_intersection_of_the_ranks(data: st.DataObject) -> None:
    """Whatever the interleaving, a router believes exactly what all ranks hold, parents first."""
    ranks = data.draw(st.integers(1, 4))
    feed = IndexFeed(ranks, block=1)
    depth = [0] * ranks
    believed: list[int] = []
    for _ in range(data.draw(st.integers(0, 30))):
        rank = data.draw(st.integers(0, ranks - 1))
        target = data.draw(st.integers(0, 6))
        grow = tuple(range(depth[rank] + 1, target + 1))
        shrink = tuple(range(depth[rank], target, -1))
        parent = depth[rank] or None
        stored = (
            (run(*grow, parent=parent, tokens=bytes(4 * len(grow)) if rank == 0 else b""),) if grow else ()
        )
        for delta in feed.apply(CacheChanges(rank=rank, stored=stored, removed=shrink)):
            for key in delta.removed:
                assert believed.pop() == key, "a parent was removed before its child"
            if delta.stored:
                assert delta.parent == (believed[-1] if believed else None)
                assert len(delta.tokens) == 4 * len(delta.stored)
                believed.extend(delta.stored)
        depth[rank] = target
        assert believed == list(range(1, min(depth) + 1))
        assert feed.stored() == min(depth)


def test_a_burst_of_long_prompts_is_announced_over_several_rounds() -> None:
    planner = RoundPlanner(AdmissionQueue(limit=8), leases=True)
    for name in "abc":
        planner.submit(PrefillRequest(request_id=name, tokens=bytes(ROUND_BYTES * 2 // 3)), 0.0)
    assert planner.abort("b")
    first = planner.next_plan(0.0)
    assert first is not None
    assert ([request.request_id for request in first.arrivals], first.release) == (["a"], ("b",))
    assert first.hint == ("a",), "nothing is looked up that was not announced"
    planner.apply(first, RoundOutcome(candidates=(Admit("a", 0),)), 0.0)
    second = planner.next_plan(0.0)
    assert second is not None
    assert [request.request_id for request in second.arrivals] == ["c"]
    assert second.prepare == (Admit("a", 0),)
