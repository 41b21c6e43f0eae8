"""A request's life on one rank, in every order its threads can bring: nothing is freed early, and nothing stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.runtime.protocol.events import CacheChanges, Failed, HandoffSettled
from wavepp_worker.runtime.protocol.rounds import Admit, Claim
from wavepp_worker.runtime.protocol.waves import Span, WaveHeader
from wavepp_worker.runtime.state.request_table import LocalRequest

from tests.support.rank_books import RankBooks
from tests.support.waiting import wait_until

PROMPT = list(range(10))
"""Two full blocks and a half."""
CHUNKS = (4, 10)
"""Where the chunks of a story end."""


@dataclass
class Story:
    """One request and what happened to it so far; ``check`` says what must be true then."""

    handoff: bool
    books: RankBooks = field(default_factory=RankBooks)
    happened: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.local = self.books.admit("r", PROMPT, handoff=self.handoff)

    def possible(self) -> list[str]:
        """What may come next: waves carry only executable requests, and none that is let go of."""
        offered, gone = "materialise" in self.happened, "let go" in self.happened
        events = [] if gone else ["let go"]
        if not offered:
            events.append("materialise")
        elif not gone and self.happened.count("chunk") < len(CHUNKS):
            events.append("chunk")
        if self.handoff and self.executable and "settle" not in self.happened:
            events.append("settle")
        return events

    def happen(self, event: str) -> None:
        lifecycle = self.books.lifecycle
        match event:
            case "materialise":
                assert lifecycle.materialise("r") == ("let go" not in self.happened)
            case "chunk":
                self.books.execute(self.local, CHUNKS[self.happened.count("chunk")])
            case "settle":
                lifecycle.settled("r", self.outcome)
            case "let go":
                lifecycle.let_go("r")
        self.happened += (event,)

    @property
    def executable(self) -> bool:
        """Whether it got its blocks before it was let go of."""
        return (*self.happened, "let go").index("let go") > (*self.happened, "materialise").index(
            "materialise"
        )

    @property
    def outcome(self) -> Settled:
        return "withdrawn" if "let go" in self.happened else "received"

    @property
    def over(self) -> bool:
        """No wave writes its blocks any more, and no decode worker reads them."""
        executed = "let go" in self.happened or self.happened.count("chunk") == len(CHUNKS)
        return executed and (not self.handoff or not self.executable or "settle" in self.happened)

    def check(self) -> None:
        books = self.books
        books.cache.check()
        assert books.requests.ids() == (() if self.over else ("r",))
        assert (books.cache.holds("r") == "nothing") == self.over, "its blocks are its own until it is over"
        if self.over:
            books.at_rest()
        told = books.events.of(HandoffSettled)
        never_offered = "let go" in self.happened and not self.executable
        assert len(told) == (self.handoff and ("settle" in self.happened or never_offered)), (
            "once, on each rank"
        )
        if never_offered:
            assert all(each.outcome == "withdrawn" for each in told)
        self._check_source()

    def _check_source(self) -> None:
        """The source hears of it only between the offer and its end."""
        before = self.happened[: (*self.happened, "let go").index("let go")]
        expected = [("offer", "r", 0)] if "materialise" in before else []
        expected += [("advance", "r", end) for end in CHUNKS[: before.count("chunk")]]
        if "let go" in self.happened and expected and "settle" not in before:
            expected.append(("withdraw", "r", 0))
        assert self.books.source.calls == (expected if self.handoff else [])


def stories(handoff: bool, events: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every order of events until nothing is left that could happen."""
    story = Story(handoff)
    for event in events:
        story.happen(event)
    following = story.possible()
    if not following:
        yield events
    for event in following:
        yield from stories(handoff, (*events, event))


@pytest.mark.parametrize("handoff", [False, True])
def test_every_order_of_events_frees_a_request_exactly_when_it_is_over(handoff: bool) -> None:
    """Promises 1, 10 and 17: settled before executed, withdrawn, let go of before it was offered, and so on."""
    told = list(stories(handoff))
    assert len(told) == len(set(told)) == (10 if handoff else 4)
    for events in told:
        story = Story(handoff)
        for event in events:
            story.happen(event)
            try:
                story.check()
            except AssertionError as error:
                raise AssertionError(f"after {story.happened}: {error}") from error
        assert story.over, f"{events} leaves blocks behind"


def test_a_settled_hand_off_frees_nothing_that_a_wave_still_writes() -> None:
    """It may expire while the prompt is being computed; who came meanwhile must not get those blocks."""
    books = RankBooks(blocks=4)
    local = books.admit("slow", PROMPT, handoff=True)
    books.lifecycle.materialise("slow")
    books.execute(local, 4)
    books.settled("slow", "expired")
    other = books.announce("other", [9] * 8)
    assert books.cache.prepare("other", other.keys, 8, 0) is None
    books.execute(local, 10)
    assert books.cache.prepare("other", other.keys, 8, 0) is not None
    books.lifecycle.let_go("other")
    books.at_rest()
    (told,) = books.events.of(HandoffSettled)
    assert told == HandoffSettled(rank=0, request_id="slow", outcome="expired")


def test_an_executed_prompt_stays_readable_until_its_hand_off_settles() -> None:
    """Promise 17."""
    books = RankBooks(blocks=4)
    local = books.admit("done", PROMPT, handoff=True)
    books.lifecycle.materialise("done")
    table = books.source.tables["done"]
    assert len(set(table)) == 3
    books.execute(local, 10)
    assert books.cache.use().held == 3
    books.settled("done", "received")
    assert books.cache.use().held == 0
    assert books.cache.use().reusable == 2
    books.at_rest()


def test_letting_go_of_who_was_never_committed_settles_nothing() -> None:
    """S30: no rank offered it, and the engine does not wait for it; announced, or prepared beside that."""
    books = RankBooks()
    books.announce("announced", PROMPT, handoff=True)
    local = books.announce("prepared", PROMPT, handoff=True)
    assert books.cache.prepare("prepared", local.keys, 10, 0) is not None
    assert set(books.source.secrets) == {"announced", "prepared"}, "who is told of them may ask at once"
    books.lifecycle.let_go("announced")
    books.lifecycle.let_go("prepared")
    books.lifecycle.let_go("never heard of")
    books.at_rest()
    assert books.events.told == []
    assert (books.source.calls, books.source.secrets) == ([], {})


def test_who_is_not_committed_or_not_known_is_not_materialised() -> None:
    books = RankBooks()
    local = books.announce("r", PROMPT)
    assert books.cache.prepare("r", local.keys, 10, 0) is not None
    assert not books.lifecycle.materialise("r"), "some rank may still have no room"
    assert not books.lifecycle.materialise("never heard of")
    assert books.cache.holds("r") == "committed"
    books.requests.admit("r", 0)
    assert books.lifecycle.materialise("r")
    assert not books.lifecycle.materialise("r"), "once"
    assert books.cache.holds("r") == "sequence"


def test_what_is_reused_can_be_read_by_a_decode_worker_at_once() -> None:
    books = RankBooks()
    books.run("before", PROMPT)
    local = books.admit("again", PROMPT, handoff=True)
    books.lifecycle.materialise("again")
    assert local.position == 8
    assert books.source.calls == [("offer", "again", 8)]
    assert local.table is not None
    assert books.source.tables["again"] == local.table.tolist()


def test_nothing_is_offered_where_nothing_is_handed_off() -> None:
    """The request does not ask for it, or the rank has no source."""
    books = RankBooks()
    books.run("plain", PROMPT)
    books.at_rest()
    assert books.source.calls == []
    without = RankBooks(handoff=False)
    without.admit("r", PROMPT, handoff=True)
    without.lifecycle.materialise("r")
    without.lifecycle.let_go("r")
    without.at_rest()
    assert without.events.of(HandoffSettled) == []


def test_a_source_may_settle_while_it_is_told_to_withdraw() -> None:
    books = RankBooks()
    books.admit("r", PROMPT, handoff=True)
    books.lifecycle.materialise("r")
    books.source.withdraw = lambda name: books.settled(name, "withdrawn")  # type: ignore[method-assign]
    thread = threading.Thread(target=books.lifecycle.let_go, args=("r",), daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive())
    books.at_rest()


def test_a_request_may_be_let_go_of_twice() -> None:
    """Whoever aborts twice finds it withdrawn already, and its blocks still read."""
    books = RankBooks()
    books.admit("r", PROMPT, handoff=True)
    books.lifecycle.materialise("r")
    books.lifecycle.let_go("r")
    books.lifecycle.let_go("r")
    assert books.cache.holds("r") == "sequence"
    books.settled("r", "withdrawn")
    books.lifecycle.let_go("r")
    books.at_rest()
    assert len(books.events.of(HandoffSettled)) == 1


def test_letting_go_waits_for_a_claim_under_way() -> None:
    """The copies of a claim write to the request's blocks; nobody else may have them before they end."""
    books = RankBooks()
    local = books.admit("r", PROMPT, handoff=True)
    copying, copied = threading.Event(), threading.Event()

    def slow_copies(moves: object) -> None:
        copying.set()
        assert copied.wait(60)

    books.tiers.run = slow_copies  # type: ignore[method-assign,assignment]
    loop = threading.Thread(target=books.lifecycle.materialise, args=("r",), daemon=True)
    loop.start()
    assert copying.wait(60)
    wave = threading.Thread(target=books.lifecycle.let_go, args=("r",), daemon=True)
    wave.start()
    wave.join(0.1)
    assert wave.is_alive()
    assert books.cache.holds("r") == "sequence"
    copied.set()
    wait_until(lambda: not wave.is_alive() and not loop.is_alive())
    assert [call for call, *_ in books.source.calls] == ["offer", "withdraw"]
    assert local.executed
    books.settled("r", "withdrawn")
    books.at_rest()


def test_a_request_let_go_of_just_before_its_claim_gets_no_blocks() -> None:
    """The LOOP thread has found it, and the WAVE thread is quicker."""
    books = RankBooks()
    books.admit("r", PROMPT, handoff=True)
    found = books.requests.get

    def overtaken(name: str) -> LocalRequest | None:
        local = found(name)
        books.requests.get = found  # type: ignore[method-assign]
        books.lifecycle.let_go(name)
        return local

    books.requests.get = overtaken  # type: ignore[method-assign]
    assert not books.lifecycle.materialise("r")
    books.at_rest()
    assert books.source.calls == []


def test_what_is_on_its_way_from_other_tiers_is_offered_with_the_wave_that_waits_for_it() -> None:
    """A GPU copies it beside the waves that are queued, and no decode worker may read it before."""
    books = RankBooks([WindowSpec("attention", "full", 3, host_blocks=8)])
    books.run("away", PROMPT)
    books.run("between", [7] * 12)
    books.tiers.copying, books.tiers.last = True, 1
    books.admit("back", PROMPT, handoff=True)
    books.lifecycle.materialise("back")
    assert books.source.calls == [("offer", "back", 0)]
    begun = books.parts.order.begin(WaveHeader(wave_id=0, spans=(span := Span("back", 8, 2, True),)))
    books.parts.order.end(begun, [span], (0.5,))
    assert books.source.calls == [("offer", "back", 0), ("advance", "back", 10)]


def test_blocks_are_copied_before_anybody_may_read_them() -> None:
    books = RankBooks([WindowSpec("attention", "full", 3, host_blocks=8)])
    books.run("away", PROMPT)
    books.run("between", [7] * 12)
    assert [move.target[0] for move in books.tiers.moves] == [Tier.HOST] * 2
    offered_after: list[int] = []
    books.source.offer = lambda *_: offered_after.append(len(books.tiers.moves))  # type: ignore[method-assign]
    books.tiers.moves.clear()
    books.admit("back", PROMPT, handoff=True)
    books.lifecycle.materialise("back")
    assert [move.target[0] for move in books.tiers.moves].count(Tier.DEVICE) == 2
    assert offered_after == [len(books.tiers.moves)]


def test_what_a_claim_evicts_is_reported_as_no_longer_reusable() -> None:
    """Promise 15: before the claim's blocks are written to."""
    books = RankBooks(blocks=3)
    first = books.run("first", PROMPT)
    books.admit("second", [7] * 12)
    books.events.told.clear()
    books.lifecycle.materialise("second")
    (changes,) = books.events.of(CacheChanges)
    assert set(BlockKeys(changes.removed)) == set(first.keys)
    assert changes.stored == ()


@pytest.mark.parametrize("leases", [True, False])
def test_what_the_disk_has_lost_is_reported_as_no_longer_reusable_at_once(leases: bool) -> None:
    """Promise 15: also where no request takes blocks or computes any after it."""
    books = RankBooks([WindowSpec("attention", "full", 4, disk_blocks=4)], leases=leases)
    first = books.run("first", PROMPT)
    books.run("second", [7] * 16)
    (on_disk,) = {move.target for move in books.tiers.moves if move.key == first.keys[0]}
    books.tiers.lost = [Copy(0, first.keys[0], *on_disk)]
    local = books.announce("third", PROMPT)
    books.events.told.clear()
    candidate = books.cache.hint(local.keys, len(PROMPT))
    assert candidate > 0
    (claim,) = books.parts.actions.ownership.prepare([Admit("third", candidate)], 0)
    assert claim.endpoint == 0
    assert set(BlockKeys(books.events.of(CacheChanges)[0].removed)) == set(first.keys)


def test_blocks_taken_at_admission_run_from_there() -> None:
    """Without leases the WAVE thread claims, and the LOOP thread finds nothing left to do."""
    books = RankBooks(leases=False)
    local = books.announce("r", PROMPT, handoff=True)
    ownership = books.parts.actions.ownership
    (claim,) = ownership.prepare([Admit("r", 0)], 0)
    assert claim.committed
    assert local.materialised is not None
    assert books.source.calls == [], "another rank may have no room"
    ownership.admitted(Admit("r", 0))
    assert books.source.calls == [("offer", "r", 0)]
    assert not books.lifecycle.materialise("r")
    books.execute(local, 10)
    books.settled("r", "received")
    books.at_rest()


@pytest.mark.parametrize("windows", [[], [WindowSpec("recurrent", "recurrent", 4, interval=4)]])
def test_layers_without_attention_have_an_empty_table(windows: list[WindowSpec]) -> None:
    books = RankBooks(windows)
    local = books.admit("r", PROMPT)
    assert books.lifecycle.materialise("r")
    assert local.table is not None
    assert local.table.tolist() == []
    books.execute(local, 10)
    books.at_rest()


def test_a_request_takes_the_snapshots_it_is_asked_for_when_it_is_admitted() -> None:
    books = RankBooks([WindowSpec("recurrent", "recurrent", 4, interval=100)])
    books.announce("r", PROMPT)
    ownership = books.parts.actions.ownership
    assert ownership.prepare([Admit("r", 0)], 0) == [Claim(0, committed=True)]
    ownership.admitted(Admit("r", 0, branches=(8,)))
    local = books.requests.known("r")
    assert books.lifecycle.materialise("r")
    books.lifecycle.chunk_begins(local, 7)
    assert local.snapshots == ({},)
    books.execute(local, 7)
    books.lifecycle.chunk_begins(local, 10)
    assert list(local.snapshots[0]) == [8]
    books.execute(local, 10)
    books.at_rest()


@pytest.mark.parametrize(("disk", "fails"), [(4, False), (4, True), (0, False)])
def test_what_a_snapshot_takes_the_place_of_goes_to_disk_or_is_reported_as_no_longer_reusable(
    disk: int, fails: bool
) -> None:
    """Promise 15: when its chunk begins, not when it is asked for."""
    books = RankBooks([WindowSpec("recurrent", "recurrent", 3, disk_blocks=disk, interval=4)])
    first = books.run("first", PROMPT)
    local = books.admit("second", [7] * 4)
    books.lifecycle.materialise("second")
    books.tiers.off = [0] if fails else []
    books.admit("third", [7] * 4 + [8])
    books.cache.release("third")
    assert books.cache.prepare("third", books.requests.known("third").keys, 5, 4, writer="second") is not None
    books.events.told.clear()
    assert not books.tiers.moves
    books.lifecycle.chunk_begins(local, 4)
    assert [move.key for move in books.tiers.moves] == ([first.keys[0]] if disk else [])
    removed = [change.removed for change in books.events.of(CacheChanges) if change.removed]
    assert removed == ([] if disk and not fails else [first.keys[0]])


def test_the_seconds_of_every_wave_add_up_rank_by_rank() -> None:
    books = RankBooks(rank=1)
    local = books.admit("r", PROMPT)
    books.lifecycle.materialise("r")
    books.execute(local, 4, compute=(0.5, 0.25))
    books.execute(local, 10, compute=(1.0, 2.0))
    assert local.compute == [1.5, 2.25]


@pytest.mark.parametrize("step", ["offer", "advance"])
def test_a_hand_off_that_cannot_take_a_request_fails_it_alone_and_leaves_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waves go on until the engine has had all ranks let go of it."""
    books = RankBooks(rank=1)
    local = books.admit("r", PROMPT, handoff=True)

    def broken(*_: object) -> None:
        raise HandoffError("the source is closed")

    monkeypatch.setattr(books.source, step, broken)
    assert books.lifecycle.materialise("r")
    books.execute(local, 4)
    (failed, *_) = books.events.of(Failed)
    assert (failed.rank, failed.request_id) == (1, "r")
    assert "the source is closed" in failed.reason
    books.lifecycle.let_go("r")
    if step == "advance":
        books.settled("r", "withdrawn")
    outcomes = [each.outcome for each in books.events.of(HandoffSettled)]
    assert outcomes == ["failed" if step == "offer" else "withdrawn"], "told once"
    books.at_rest()
