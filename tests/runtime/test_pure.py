"""The pure parts of the runtime: outcomes of rounds, greedy planning, the ring, the index feed."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import AuditError, PositionMismatch, RequestTimeout
from wavepp_worker.runtime.admission import admitted_requests, agreed_endpoints
from wavepp_worker.runtime.boundary import SchedulingBoundary
from wavepp_worker.runtime.index_feed import IndexFeed
from wavepp_worker.runtime.messages import PrefillRequest
from wavepp_worker.runtime.planner import GreedyPlanner, Lane
from wavepp_worker.runtime.protocol import Admit, CacheChanges, Plan, Span, StoredRun, Vote
from wavepp_worker.runtime.requests import LocalRequest, RequestTable
from wavepp_worker.runtime.ring import Ring


def test_the_endpoint_is_what_every_rank_can_reuse() -> None:
    plan = Plan(round_id=3, walk=("a", "b"))
    votes = [Vote(round_id=3, rank=0, endpoints=(64, 0)), Vote(round_id=3, rank=1, endpoints=(32, 16))]
    assert agreed_endpoints(plan, votes) == (Admit("a", 32), Admit("b", 0))


def test_a_request_is_admitted_by_all_ranks_or_none() -> None:
    """S06, promise 8: the rank with the least room decides how many leading requests all admit."""
    plan = Plan(round_id=0, admit=(Admit("a", 0), Admit("b", 0), Admit("c", 0)))
    votes = [Vote(round_id=0, rank=rank, admitted=count) for rank, count in enumerate((3, 1, 2))]
    assert admitted_requests(plan, votes) == (Admit("a", 0),)


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
    table.announce(LocalRequest(request, []))
    table.admit(name, torch.arange(8), endpoint)
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
        table_with("r", tokens=32, endpoint=16).executable(span, timeout=0.01)


def test_a_follower_that_is_behind_with_admission_waits_for_it() -> None:
    table = RequestTable()
    table.announce(LocalRequest(PrefillRequest(request_id="late", tokens=bytes(16)), []))
    timer = threading.Timer(0.05, lambda: table.admit("late", torch.arange(1), 0))
    timer.start()
    assert table.executable(Span("late", 0, 4, True), timeout=5).position == 0


def test_parking_waits_for_the_wave_and_holds_the_next_one_back() -> None:
    boundary = SchedulingBoundary()
    with boundary.executing(1), pytest.raises(RequestTimeout, match="still executing"):
        boundary.park(0.01)
    boundary.park(1)
    with pytest.raises(RequestTimeout, match="still holds"), boundary.executing(0.01):
        pass
    boundary.resume()
    with boundary.executing(0.01):
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
