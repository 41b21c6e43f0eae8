"""Which wave runs next on a rank, where its requests have to stand, and what is reusable behind it."""

from __future__ import annotations

import msgspec
import pytest
from wavepp_worker.cache.results import Prepared
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.events import CacheChanges
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.waves import Span, WaveHeader
from wavepp_worker.runtime.state.request_table import LocalRequest

from tests.support.rank_books import RankBooks


def wave(wave_id: int, *spans: Span) -> WaveHeader:
    return WaveHeader(wave_id=wave_id, spans=spans)


def test_waves_run_in_the_order_rank_0_launched_them() -> None:
    """Promise 12."""
    order = RankBooks().parts.order
    order.begin(wave(0))
    order.begin(wave(1))
    for refused in (0, 1, 3):
        with pytest.raises(PositionMismatch, match=f"wave {refused} arrived, wave 2 is next"):
            order.begin(wave(refused))
    order.begin(wave(2))


def test_a_waves_requests_get_their_blocks_and_come_in_the_order_of_its_spans() -> None:
    books = RankBooks()
    a, b = books.admit("a", [1] * 8), books.admit("b", [2] * 8)
    assert books.parts.order.materialise("b")
    assert not books.parts.order.materialise("b")
    begun = books.parts.order.begin(wave(0, Span("b", 0, 8, True), Span("a", 0, 4, False)))
    assert begun == [b, a]
    assert a.table is not None
    assert b.table is not None


def test_a_wave_waits_for_moves_of_the_blocks_that_its_requests_have() -> None:
    """Also for moves of others: those may have made room for it, or copied what it reuses."""
    books = RankBooks()
    books.admit("a", [1] * 8)
    books.admit("b", [2] * 8)
    order, tiers = books.parts.order, books.tiers
    tiers.last = 3
    order.materialise("a")
    tiers.last = 7
    order.materialise("b")
    tiers.last = 9
    first = wave(0, Span("a", 0, 4, False))
    order.end(order.begin(first), first.spans, (0.5,))
    order.begin(wave(1, Span("b", 0, 4, False), Span("a", 4, 4, True)))
    assert tiers.followed == [3, 7]


def test_a_chunk_has_to_begin_where_its_request_stands() -> None:
    """Promise 12: what was executed counts, and so does what is reused."""
    books = RankBooks()
    books.run("before", list(range(8)))
    local = books.admit("r", list(range(20)))
    order = books.parts.order
    begun = order.begin(wave(0, Span("r", 8, 4, False)))
    order.end(begun, [Span("r", 8, 4, False)], (0.5,))
    assert local.position == 12
    with pytest.raises(
        PositionMismatch, match="request r is scheduled at token 8, but this rank stands at token 12"
    ):
        order.begin(wave(1, Span("r", 8, 4, False)))


def test_a_wave_of_a_request_nobody_announced_is_refused() -> None:
    with pytest.raises(PositionMismatch, match="request x, which this rank does not know"):
        RankBooks().parts.order.begin(wave(0, Span("x", 0, 4, False)))


def test_a_wave_can_run_once_all_its_requests_are_committed() -> None:
    books = RankBooks()
    spans = (Span("a", 0, 4, False), Span("b", 0, 4, False))
    order = books.parts.order
    assert order.unadmitted(spans) == spans[0], "not even announced"
    books.admit("a", [1] * 8)
    books.announce("b", [2] * 8)
    assert order.unadmitted(spans) == spans[1]
    books.requests.admit("b", 0)
    assert order.unadmitted(spans) is None


def test_what_a_wave_computed_is_reusable_when_it_ends_and_not_before() -> None:
    books = RankBooks()
    prompt = list(range(10))
    a, b = books.admit("a", prompt), books.admit("b", [7] * 4)
    spans = (Span("a", 0, 8, False), Span("b", 0, 4, True))
    order = books.parts.order
    begun = order.begin(wave(0, *spans))
    assert books.cache.match(a.keys, 10) == 0
    assert books.parts.reports.waves == 0
    order.end(begun, spans, (0.5, 0.25))
    assert books.cache.match(a.keys, 10) == 8
    assert (a.compute, b.compute) == ([0.5, 0.25], [0.5, 0.25])
    assert books.requests.ids() == ("a",), "b's prompt is done"
    assert books.parts.reports.waves == 1


def test_what_a_wave_made_reusable_is_told_at_once_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    books = RankBooks()
    a, b, _ = (books.admit(name, [ord(name)] * 8) for name in ("a", "b", "c"))
    spans = (Span("a", 0, 8, True), Span("b", 0, 8, True), Span("c", 0, 3, False))
    sent: list[tuple[Message, ...]] = []
    monkeypatch.setattr(books.events, "send", lambda *messages: sent.append(messages))
    books.parts.order.end(books.parts.order.begin(wave(0, *spans)), spans, (0.5,))
    (changes,) = sent
    told = [b"".join(run.keys for run in each.stored) for each in changes if isinstance(each, CacheChanges)]
    assert told == [b"".join(a.keys), b"".join(b.keys)], "c has no full block"


def test_a_wave_of_a_canary_alone_is_progress_but_is_not_counted() -> None:
    books = RankBooks()
    order, reports = books.parts.order, books.parts.reports
    books.admit_request(msgspec.structs.replace(PrefillRequest.of("canary", [0, 0, 0]), probe=True))
    books.admit("a", [1, 2])
    for number, names in enumerate((["canary"], ["canary", "a"])):
        spans = [Span(name, number if name == "canary" else 0, 1, False) for name in names]
        order.end(order.begin(wave(number, *spans)), spans, (0.5,))
        assert (reports.waves, reports.busy) == (number, 0.5 * (number + 1))


def test_a_chunk_that_has_begun_says_which_snapshots_to_take_and_can_be_asked_for_none() -> None:
    books = RankBooks([WindowSpec("recurrent", "recurrent", 8, interval=8)])
    local = books.admit("r", [1] * 20)
    reader = books.announce("reader", [1] * 12 + [2])
    books.parts.order.begin(wave(0, Span("r", 0, 14, False)))
    assert [list(snapshots) for snapshots in local.snapshots] == [[8]]
    assert books.cache.prepare("reader", reader.keys, 13, 12, writer="r") == Prepared(8, False)


def reading(books: RankBooks, name: str, prompt: list[int], writer: str, endpoint: int) -> LocalRequest:
    """Admitted behind a request that is to compute what it reuses."""
    local = books.announce(name, prompt, handoff=True)
    assert books.cache.prepare(name, local.keys, len(prompt), endpoint, writer=writer) == Prepared(
        endpoint, True
    )
    books.requests.admit(name, endpoint)
    return local


def test_who_reads_what_an_earlier_chunk_of_its_wave_computes_gets_it_before_that_is_written() -> None:
    """A chain of them: each gets it with the claims of the wave, and offers nothing before the wave has run."""
    books = RankBooks()
    books.admit("writer", [1] * 10)
    reader = reading(books, "reader", [1] * 8 + [2] * 6, "writer", 8)
    chained = reading(books, "chained", [1] * 8 + [2] * 4 + [3], "reader", 12)
    order = books.parts.order
    assert not order.ready("reader")
    spans = (Span("writer", 0, 10, True), Span("reader", 8, 6, True), Span("chained", 12, 1, True))
    assert order.claim(spans) == ["writer", "reader", "chained"]
    assert order.claim(spans) == []
    assert [call[1:] for call in books.source.calls] == [("reader", 0), ("chained", 0)]
    begun = order.begin(wave(0, *spans))
    assert (reader.position, chained.position) == (8, 12)
    order.end(begun, spans, (0.5,))
    assert books.source.calls[2:] == [("advance", "reader", 14), ("advance", "chained", 13)]
    books.settled("reader", "pulled")
    books.settled("chained", "pulled")
    books.at_rest()


def test_all_who_read_the_same_in_its_wave_offer_it_only_when_it_is_written() -> None:
    books = RankBooks()
    books.admit("writer", [1] * 10)
    names = ("a", "b", "c")
    for name in names:
        reading(books, name, [1] * 8 + [2], "writer", 8)
    order, riders = books.parts.order, [Span(name, 8, 1, True) for name in names[:2]]
    begun = order.begin(wave(0, Span("writer", 0, 10, True), *riders))
    assert books.source.calls == [("offer", "a", 0), ("offer", "b", 0)]
    order.end(begun, [Span("writer", 0, 10, True), *riders], (0.5,))
    assert order.ready("c")
    order.materialise("c")
    assert books.source.calls[2:] == [("advance", "a", 9), ("advance", "b", 9), ("offer", "c", 8)]


@pytest.mark.parametrize(
    "spans",
    [
        (Span("reader", 8, 2, True),),
        (Span("reader", 8, 2, True), Span("writer", 0, 10, True)),
        (Span("writer", 0, 4, False), Span("reader", 8, 2, True)),
    ],
    ids=["no writer", "behind", "not as far"],
)
def test_who_reads_what_is_not_computed_before_it_is_refused(spans: tuple[Span, ...]) -> None:
    books = RankBooks()
    books.admit("writer", [1] * 10)
    reading(books, "reader", [1] * 8 + [2] * 2, "writer", 8)
    with pytest.raises(
        PositionMismatch, match="reader is scheduled at token 8, but reads blocks that writer"
    ):
        books.parts.order.begin(wave(0, *spans))


def test_what_is_told_of_a_writer_whose_readers_run_with_it_names_its_prompt() -> None:
    books = RankBooks()
    writer = books.admit("writer", [1] * 10)
    reading(books, "reader", [1] * 8 + [2] * 2, "writer", 8)
    spans = (Span("writer", 0, 10, True), Span("reader", 8, 2, True))
    order = books.parts.order
    order.end(order.begin(wave(0, *spans)), spans, (0.5,))
    runs = [run for each in books.events.of(CacheChanges) for run in each.stored]
    assert [(run.keys, run.parent) for run in runs] == [(b"".join(writer.keys), None)]
    assert len(runs[0].tokens) == 8 * 4
