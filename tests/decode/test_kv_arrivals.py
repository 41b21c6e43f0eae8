"""The KV arrivals thread on a receiver that gives what a test says, without a model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.decode.kv_arrivals import KvArrivals
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.errors import HandoffError, InvalidRequest, WaveppError
from wavepp_worker.handoff.decode.received import Moments, Received
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.sampled_token import SampledToken

from tests.support.decode_bench import Collector
from tests.support.decoding_requests import decoding
from tests.support.handoff_sides import SECRET
from tests.support.waiting import WAIT_SECONDS, wait_until

VOCABULARY = 50
MOMENTS = Moments(began=1.0, offered=2.0, prefilled=4.0, ended=5.0)
BLOCK_SIZE = 4


class NamedGuide:
    """Takes the tokens that it is named after, and is complete after the last."""

    def __init__(self, grammar: Grammar) -> None:
        self.left = [int(each) for each in grammar.text.split()]

    def accept(self, token: int) -> None:
        self.right = self.left.pop(0) == token

    def complete(self, seconds: float) -> bool:
        if not self.right:
            raise WaveppError("the grammar cannot be followed")
        return not self.left

    def cancel(self) -> None:
        pass


class NamedGuides:
    """Refuses grammars whose text is no numbers."""

    def guide(self, grammar: Grammar) -> Future[NamedGuide]:
        made: Future[NamedGuide] = Future()
        try:
            made.set_result(NamedGuide(grammar))
        except ValueError:
            made.set_exception(InvalidRequest("unclosed group"))
        return made


class Receiver:
    """Offers 4 prompt tokens and, once ``arrived`` is set, gives first token 7 with 2 tokens reused."""

    def __init__(self) -> None:
        self.offered_tokens = 4
        self.first = 7
        self.error: Exception | None = None
        self.arrived = threading.Event()
        self.arrived.set()
        self.tables: list[torch.Tensor] = []
        self.cancelled = 0
        self.closed = threading.Event()

    async def receive(
        self, at: BootstrapAddress, allocate: Any, timeout: float, state: Any, on_computed: Any
    ) -> Received:
        offer = Offer(
            request_id="p", secret=SECRET, prompt_tokens=self.offered_tokens, model_id="m", ranks=()
        )
        on_computed()
        try:
            self.tables.append(await allocate(offer))
            while not self.arrived.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        end = FirstToken(first=SampledToken(self.first), reused_tokens=2)
        return Received(offer=offer, first=end, bytes_received=100, moments=MOMENTS)

    def close(self) -> None:
        self.closed.set()


class Side:
    def __init__(self, blocks: int = 8) -> None:
        self.receiver = Receiver()
        self.scheduler = Scheduler(Batch(blocks, 8), BLOCK_SIZE)
        self.failures: list[BaseException] = []
        self.guides = NamedGuides()
        self.arrivals = KvArrivals(
            self.receiver,  # type: ignore[arg-type]
            self.scheduler,
            self.guides,  # type: ignore[arg-type]
            adapters={},
            vocab_size=VOCABULARY,
            timeout=WAIT_SECONDS,
            on_failure=self.failures.append,
            watched=Watched("KV arrivals"),
            turn_seconds=WAIT_SECONDS,
        )
        self.arrivals.start()

    def submit(self, name: str = "r0", **values: Any) -> tuple[DecodingRequest, Collector]:
        request, collector = decoding(name, **values)
        self.scheduler.add(request)
        self.arrivals.submit(request)
        return request, collector


@pytest.fixture
def side() -> Iterator[Callable[..., Side]]:
    """``side(blocks=8)``: a running thread; at the end it is closed and nothing has failed."""
    made: list[Side] = []

    def make(**values: Any) -> Side:
        made.append(Side(**values))
        return made[-1]

    yield make
    for each in made:
        each.arrivals.close(WAIT_SECONDS)
        each.arrivals.close(WAIT_SECONDS)
        assert each.receiver.closed.is_set()
        assert each.failures == []


def test_a_request_whose_kv_is_here_is_passed_on_with_its_first_token(side: Any) -> None:
    s = side()
    request, collector = s.submit(max_tokens=6)
    assert s.scheduler.next_step() == [request]
    assert (collector.ids, request.sequence.generated, request.reused_tokens) == ([7], [7], 2)
    assert request.table is s.receiver.tables[0]
    # 4 prompt tokens and 6 generated, of which the last is never run.
    assert (request.table.dtype, len(request.table)) == (torch.int64, 3)
    assert s.arrivals.bytes_received == 100
    first, *others = collector.outputs
    assert first.arrived == Arrived(moments=MOMENTS, bytes_received=100, ranks=0)
    s.scheduler.emit(request, (SampledToken(8),))
    assert [output.arrived for output in collector.outputs[1:]] == [None], "told once"
    assert others == []


def test_an_answer_of_one_token_never_runs(side: Any) -> None:
    s = side()
    _, collector = s.submit(max_tokens=1)
    assert (collector.reason, collector.ids) == ("length", [7])
    s.scheduler.check_at_rest(WAIT_SECONDS)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("offered_tokens", 3, "prompt of 4 tokens, but bootstrap_room 1 offers KV of 3"),
        ("first", VOCABULARY, "first token 50 of request r0 is outside the vocabulary of 50"),
        ("first", -1, "first token -1"),
        ("error", HandoffError("rank 1 is gone"), "rank 1 is gone"),
        ("error", OSError("broken"), "the KV of request r0 could not be received: OSError: broken"),
    ],
)
def test_what_cannot_be_continued_fails_and_gives_its_blocks_back(
    side: Any, field: str, value: Any, sentence: str
) -> None:
    s = side()
    setattr(s.receiver, field, value)
    _, collector = s.submit()
    assert (collector.reason, collector.last.error_kind) == ("error", "HandoffError")
    assert sentence in (collector.last.error or "")
    s.scheduler.check_at_rest(WAIT_SECONDS)


def test_a_defect_in_passing_one_on_fails_it_alone(side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = side()
    with monkeypatch.context() as patch:
        patch.setattr(s.scheduler, "start", lambda _: 1 // 0)
        _, collector = s.submit("a")
        assert (collector.reason, collector.last.error_kind) == ("error", "RequestFailed")
    assert "request a could not be continued from its first token: ZeroDivisionError" in collector.last.error
    s.scheduler.check_at_rest(WAIT_SECONDS)
    _, collector = s.submit("b", max_tokens=1)
    assert collector.reason == "length"


def test_one_waits_for_blocks_until_another_ends(side: Any) -> None:
    s = side(blocks=2)
    first, _ = s.submit("a")
    assert s.scheduler.next_step() == [first]
    second, _ = s.submit("b")
    wait_until(lambda: s.scheduler.counts()["waiting"] == 1)
    s.scheduler.finish(first, "length")
    assert s.scheduler.next_step() == [second]


def test_a_request_cancelled_while_kv_arrives_lets_go_of_it(side: Any) -> None:
    s = side()
    s.receiver.arrived.clear()
    _, collector = s.submit()
    wait_until(lambda: s.receiver.tables)
    s.arrivals.cancel("nobody")
    s.arrivals.cancel("r0")
    assert collector.reason == "cancelled"
    assert s.receiver.cancelled == 1
    s.scheduler.check_at_rest(WAIT_SECONDS)


def test_a_request_aborted_before_it_began_is_never_asked_for(side: Any) -> None:
    s = side()
    request, collector = decoding()
    s.scheduler.add(request)
    s.scheduler.abort("r0")
    s.arrivals.submit(request)
    assert collector.reason == "cancelled"
    assert s.receiver.tables == []


def test_closing_cancels_what_is_arriving(side: Any) -> None:
    s = side()
    s.receiver.arrived.clear()
    _, collector = s.submit()
    wait_until(lambda: s.receiver.tables)
    s.arrivals.close(WAIT_SECONDS)
    assert collector.reason == "cancelled"
    late, _ = decoding("late")
    s.arrivals.submit(late)


def test_a_first_token_begins_what_the_answer_must_match(side: Any) -> None:
    s = side()
    request, _ = s.submit("a", grammar=Grammar("regex", "7 8"))
    assert s.scheduler.next_step() == [request]
    assert request.sequence.guide.left == [8]
    _, complete = s.submit("b", grammar=Grammar("regex", "7"))
    assert (complete.reason, complete.ids) == ("stop", [7]), "complete with its first token"
    _, wrong = s.submit("c", grammar=Grammar("regex", "8"))
    assert (wrong.reason, wrong.last.error_kind) == ("error", "RequestFailed")
    assert "request c could not be continued from its first token: the grammar" in wrong.last.error


def test_nobody_is_asked_for_the_kv_of_a_grammar_that_is_refused(side: Any) -> None:
    s = side()
    _, collector = s.submit(grammar=Grammar("regex", "(a"))
    assert (collector.last.error_kind, collector.last.error) == ("InvalidRequest", "unclosed group")
    assert s.receiver.tables == []
    s.scheduler.check_at_rest(WAIT_SECONDS)


def test_a_prompt_that_runs_here_waits_for_blocks_alone(side: Any) -> None:
    s = side(blocks=3)
    request, collector = s.submit("a", max_tokens=6, handoff=None)
    assert s.scheduler.next_step() == [request]
    assert (len(request.table), request.sequence.left, collector.ids) == (3, 4, [])
    assert s.receiver.tables == []
    _, waits = s.submit("b", max_tokens=6, handoff=None)
    s.scheduler.abort("b")
    s.arrivals.cancel("b")
    assert waits.reason == "cancelled"
    s.scheduler.finish(request, "stop")
    s.scheduler.check_at_rest(WAIT_SECONDS)
