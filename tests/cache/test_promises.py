"""Promises 1 to 7 of docs/design.md on one rank, each by a case that fails without its mechanism."""

from __future__ import annotations

from itertools import pairwise

import pytest
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import AuditError

from tests.support.cache_bench import BLOCK, CacheBench, attention, keys_of, prompt, recurrent


def test_promise_1_every_reference_has_its_owner_in_every_state_and_tier() -> None:
    bench = CacheBench(attention(8, host=2, disk=2), recurrent(4, host=1))
    for first in range(6):
        bench.run(f"fill{first}", prompt(first, 7))
    bench.prepare("a", [*prompt(5, 6), 8, 8])
    bench.cache.check()
    bench.materialise("a")
    bench.compute("a", 7)
    with pytest.raises(AuditError, match="still hold blocks: a"):
        bench.cache.audit()
    bench.release("a")
    use = bench.cache.audit()
    assert use.free + use.reusable == use.capacity
    assert [tier.used for tier in bench.cache.tiers()[1:]] == [2, 2]


@pytest.mark.parametrize(
    ("break_books", "complaint"),
    [
        (lambda bench: bench.tree().pools[Tier.DEVICE].take(1), "are in use"),
        (lambda bench: bench.tree().pin(list(bench.tree().nodes.values())[:1]), "pins, requests hold it"),
        (
            lambda bench: bench.tree().unpinned.__setitem__(Tier.DEVICE, 0),
            "reclaimable DEVICE blocks counted",
        ),
        (lambda bench: bench.tree()._index.remove(0, keys_of(prompt(1, 2))[0]), "hint index"),
        (lambda bench: bench.ledger()._escrows.clear(), "escrows add up to"),
        (lambda bench: setattr(bench.ledger(), "promised", 99), "escrows add up to"),
    ],
)
def test_promise_1_the_audit_sees_each_kind_of_leak(break_books: object, complaint: str) -> None:
    bench = CacheBench(attention(8))
    bench.run("fill", prompt(1, 4))
    bench.prepare("waits", prompt(2, 4))
    bench.cache.check()
    break_books(bench)  # type: ignore[operator]
    with pytest.raises(AuditError, match=complaint):
        bench.cache.check()


def test_promise_2_a_leased_block_survives_pressure_until_its_sequence_ends() -> None:
    bench = CacheBench(attention(8, host=2))
    bench.run("first", prompt(1, 6))
    assert bench.lease("keeper", [*prompt(1, 6), 9]) == 6
    for number in range(5):
        bench.run(f"pressure{number}", prompt(10 + number, 10))
    assert bench.cache.match(keys_of(prompt(1, 6)), 7) == 6
    assert bench.cache.reserve("keeper")
    bench.materialise("keeper")
    for number in range(5):
        bench.run(f"more{number}", prompt(20 + number, 8))
    bench.compute("keeper")
    bench.release("keeper")
    bench.cache.audit()


def test_promise_2_a_leased_block_below_the_device_stays_in_reach() -> None:
    bench = CacheBench(attention(4, host=2, disk=2))
    bench.run("first", prompt(1, 4))
    bench.run("pushes it down", prompt(2, 8))
    assert bench.lease("keeper", [*prompt(1, 4), 9]) == 4
    assert {node.tier for node in bench.reservation("keeper").shares[0].pinned} == {Tier.HOST}
    for number in range(4):
        bench.run(f"pressure{number}", prompt(10 + number, 8))
    assert bench.cache.reserve("keeper")
    bench.materialise("keeper")
    bench.compute("keeper")


def test_promise_3_committed_room_cannot_be_claimed_away() -> None:
    """Victims stay reusable up to the point where another claim would take committed room."""
    bench = CacheBench(attention(6))
    bench.run("old", prompt(1, 8))
    committed = bench.prepare("b", prompt(2, 8))
    assert committed is not None
    assert committed.committed
    # 2 free, 4 reclaimable, 4 committed: of the 4 blocks of the old prompt, 2 may be claimed.
    assert bench.lease("c", [*prompt(1, 8), 9]) == 4
    bench.materialise("b")
    bench.compute("b")
    assert bench.cache.match(keys_of(prompt(1, 8)), 9) == 4
    bench.release("c")
    bench.release("b")
    bench.cache.audit()


def test_promise_3_committed_room_for_states_cannot_be_claimed_away() -> None:
    bench = CacheBench(attention(16), recurrent(3))
    bench.run("a", prompt(1, 7))
    for name in "bcd":
        assert bench.prepare(name, prompt(2, 2)).committed
    assert bench.lease("e", prompt(1, 7)) == 0
    for name in "bcd":
        bench.materialise(name)
        bench.compute(name)


def test_promise_3_a_victim_claimed_before_commit_is_substituted() -> None:
    bench = CacheBench(attention(9))
    bench.run("likely victim", prompt(1, 4))
    bench.run("spare", prompt(2, 6))
    bench.lease("b", prompt(3, 10))
    assert bench.cache.reserve("b")
    assert bench.lease("claims", [*prompt(1, 4), 9]) == 4
    assert bench.cache.commit("b", 0).committed
    bench.materialise("b")
    assert bench.cache.match(keys_of(prompt(1, 4)), 5) == 4
    assert bench.cache.match(keys_of(prompt(2, 6)), 7) == 4


def test_promise_3_victims_stay_readable_until_materialisation() -> None:
    bench = CacheBench(attention(4, host=4))
    bench.run("old", prompt(1, 8))
    assert bench.prepare("b", prompt(2, 8)).committed
    assert {node.tier for node in bench.tree().nodes.values()} == {Tier.DEVICE}
    claimed = bench.materialise("b")
    assert [(move.source[0], move.target[0]) for move in claimed.moves] == [(Tier.DEVICE, Tier.HOST)] * 4
    bench.compute("b")
    assert bench.cache.match(keys_of(prompt(1, 8)), 9) == 8


def test_promise_4_a_commit_without_room_leaves_lease_and_escrow_as_they_were() -> None:
    bench = CacheBench(attention(8))
    bench.run("old", prompt(1, 8))
    assert bench.prepare("a", [*prompt(1, 8), 5, 5]) is not None
    others = bench.prepare("b", prompt(2, 6))
    assert others is not None
    assert others.committed
    reservation, ledger = bench.reservation("a"), bench.ledger()
    before = (
        reservation.end,
        reservation.state,
        [node.key for node in reservation.shares[0].pinned],
        ledger.get("a"),
    )
    assert reservation.end == 4
    # At 4 tokens the request needs 3 blocks. 4 are free, but 3 of them committed to b, and what its own lease
    # would let go of is held by c.
    bench.lease("c", [*prompt(1, 8), 9])
    prepared = bench.cache.commit("a", 4)
    assert (prepared.endpoint, prepared.committed) == (4, False)
    assert before == (
        reservation.end,
        reservation.state,
        [node.key for node in reservation.shares[0].pinned],
        ledger.get("a"),
    )
    bench.materialise("a")
    bench.compute("a")


def test_a_commit_counts_the_room_that_its_own_lease_lets_go_of() -> None:
    bench = CacheBench(attention(8))
    bench.run("old", prompt(1, 8))
    assert bench.prepare("a", [*prompt(1, 8), 5, 5]).committed
    assert bench.prepare("b", prompt(2, 6)).committed
    # 4 are free, 3 of them committed to b; going down to 4 tokens frees 2 more, and 3 are needed.
    assert bench.cache.commit("a", 4).committed
    assert bench.cache.commit("a", 0).committed
    for name in "ab":
        bench.materialise(name)
        bench.compute(name)


@pytest.mark.parametrize("state", ["nothing", "lease", "escrow", "committed", "sequence", "half computed"])
def test_promise_5_release_is_safe_in_every_state_any_number_of_times(state: str) -> None:
    bench = CacheBench(attention(8, host=2), recurrent(4))
    bench.run("old", prompt(1, 8))
    tokens = [*prompt(1, 4), 2, 2, 2]
    if state != "nothing":
        bench.lease("a", tokens)
    if state in ("escrow", "committed", "sequence", "half computed"):
        assert bench.cache.reserve("a")
    if state in ("committed", "sequence", "half computed"):
        assert bench.cache.commit("a", 4).committed
    if state in ("sequence", "half computed"):
        bench.materialise("a")
    if state == "half computed":
        bench.compute("a", 5)
    assert bench.cache.holds("a") == {"half computed": "sequence"}.get(state, state)
    assert [bench.release("a") for _ in range(3)] == [state != "nothing", False, False]
    bench.cache.audit()
    bench.run("a", tokens)


def test_promise_5_escrow_goes_before_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round, blocks would be reclaimable for a moment that are still reserved as such."""
    bench = CacheBench(attention(4), recurrent(4))
    bench.run("old", prompt(1, 4))
    bench.prepare("a", [*prompt(1, 4), 9])
    order: list[tuple[str, int]] = []
    for number, window in enumerate(bench.cache._windows):
        drop, unpin = window.ledger.drop, window.tree.unpin
        monkeypatch.setattr(
            window.ledger, "drop", lambda name, n=number, f=drop: (order.append(("escrow", n)), f(name))
        )
        monkeypatch.setattr(
            window.tree, "unpin", lambda nodes, n=number, f=unpin: (order.append(("lease", n)), f(nodes))
        )
    bench.cache.release("a")
    assert [order.index(("escrow", n)) < order.index(("lease", n)) for n in range(2)] == [True, True]


def test_promise_6_the_hint_index_is_the_tree_whatever_tier_it_is_on() -> None:
    bench = CacheBench(attention(4, host=2, disk=2))
    keys = keys_of(prompt(1, 8))
    bench.run("a", prompt(1, 8))
    assert bench.cache.hint(keys, 9) == 8
    bench.run("b", prompt(2, 8))
    tiers = [bench.tree().nodes[key].tier for key in keys]
    assert tiers == [Tier.HOST, Tier.HOST, Tier.DISK, Tier.DISK]
    assert bench.cache.hint(keys, 9) == 8
    bench.run("c", prompt(3, 2))
    assert [bench.tree().nodes[key].tier for key in keys[:3]] == [Tier.HOST, Tier.DISK, Tier.DISK]
    assert bench.cache.hint(keys, 9) == 6
    bench.run("d", prompt(4, 8))
    assert bench.cache.hint(keys, 9) == 0
    bench.cache.audit()


def test_promise_7_resumes_only_from_a_snapshot_at_exactly_the_endpoint() -> None:
    bench = CacheBench(attention(16), recurrent(8))
    bench.run("a", prompt(1, 11))
    for candidate, endpoint in ((11, 8), (8, 8), (7, 4), (6, 4), (4, 4), (3, 0)):
        assert bench.lease("b", prompt(1, 11), candidate) == endpoint
        assert bench.cache.reserve("b")
        claimed = bench.materialise("b")
        assert (claimed.resume[1] is None) == (endpoint == 0)
        assert sorted(bench.begin("b", 11).snapshots[1]) == [at for at in (4, 8) if at > endpoint]
        bench.release("b")


def test_promise_7_the_earlier_snapshot_is_held_before_the_later_one_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = CacheBench(attention(16), recurrent(8))
    bench.run("a", prompt(1, 11))
    assert bench.lease("b", prompt(1, 11)) == 8
    keys = keys_of(prompt(1, 11))
    held: list[set[int]] = []

    def now() -> set[int]:
        return {at * BLOCK for at in (2, 4) if bench.tree(1).nodes[keys[at - 1]].pins}

    tree = bench.tree(1)
    for name in ("pin", "unpin"):
        original = getattr(tree, name)
        monkeypatch.setattr(tree, name, lambda nodes, f=original: (f(nodes), held.append(now())))
    assert bench.cache.reserve("b")
    assert bench.cache.commit("b", 4).committed
    assert held == [{4, 8}, {4}]


def test_promise_7_a_pool_of_two_states_still_reuses_a_snapshot() -> None:
    """Snapshots to take never cost more than what is left beside the working state and the resumed one."""
    bench = CacheBench(attention(16), recurrent(2))
    bench.run("a", prompt(1, 7))
    assert bench.prepare("b", [*prompt(1, 7), 2, 2, 2, 2]).endpoint == 4
    bench.materialise("b")
    assert bench.begin("b", 11).snapshots[1] == {}
    bench.compute("b")


def test_promise_7_the_latest_snapshots_are_taken() -> None:
    spec = WindowSpec("recurrent", "recurrent", 8, interval=4, max_snapshots=2)
    bench = CacheBench(attention(16), spec)
    bench.prepare("a", prompt(1, 17))
    bench.materialise("a")
    assert list(bench.begin("a", 17).snapshots[1]) == [12, 16]


def test_promise_7_going_down_counts_the_snapshot_that_is_let_go_of() -> None:
    """All other states are committed, so the earlier snapshot can be pinned only in exchange for the later one."""
    bench = CacheBench(attention(16), recurrent(4))
    bench.run("a", prompt(1, 11))
    assert bench.lease("b", prompt(1, 11)) == 8
    for name in "cde":
        assert bench.prepare(name, prompt(2, 2)).committed
    prepared = bench.cache.commit("b", 4)
    assert (prepared.endpoint, prepared.committed) == (4, False)
    assert bench.reservation("b").end * BLOCK == 8


def test_a_committed_request_that_has_to_go_lower_than_asked_is_committed_no_more() -> None:
    bench = CacheBench(attention(16), recurrent(8))
    bench.run("a", prompt(1, 11))
    assert bench.prepare("b", prompt(1, 11)).committed
    assert bench.ledger().promised == 2
    prepared = bench.cache.commit("b", 6)
    assert (prepared.endpoint, prepared.committed) == (4, False)
    assert (bench.cache.holds("b"), bench.ledger().promised, bench.ledger().reserved) == ("escrow", 0, 2)
    assert bench.cache.commit("b", 4).committed
    bench.materialise("b")
    bench.compute("b")


def test_lowering_is_monotone_and_recomputes_demand() -> None:
    bench = CacheBench(attention(16))
    bench.run("old", prompt(1, 12))
    bench.lease("a", [*prompt(1, 12), 2])
    assert bench.cache.reserve("a")
    demands = []
    for endpoint in (12, 8, 2, 0):
        assert bench.cache.commit("a", endpoint).committed
        demands.append(bench.ledger().get("a").blocks)
    assert demands == [1, 3, 6, 7]
    assert bench.cache.commit("a", 6) == bench.cache.commit("a", 8)
    assert all(earlier <= later for earlier, later in pairwise(demands))
    assert (bench.cache.holds("a"), bench.reservation("a").end) == ("committed", 0)
