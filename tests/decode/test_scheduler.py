"""Who gets blocks, who runs, and who is told what, without a model or a thread of the engine's."""

from __future__ import annotations

import random
import threading
import time
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from wavepp_worker.decode import answer_lengths
from wavepp_worker.decode.answer_lengths import UNKNOWN
from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.errors import AuditError, EngineDead, HandoffError, InvalidRequest
from wavepp_worker.model.sampled_token import SampledToken

from tests.support.decode_bench import Collector
from tests.support.decoding_requests import decoding
from tests.support.waiting import WAIT_SECONDS

TOKEN = (SampledToken(7),)


def scheduler(blocks: int = 8, max_num_seqs: int = 8) -> Scheduler:
    return Scheduler(Batch(blocks, max_num_seqs), block_size=1)


def sized(name: str, blocks: int, **values: Any) -> tuple[DecodingRequest, Collector]:
    """A request that needs so many blocks at first; its prompt is computed."""
    request, collector = decoding(name, **{"prompt_tokens": blocks, "max_tokens": 1, **values})
    request.computed = True
    return request, collector


def asking(scheduler: Scheduler, request: DecodingRequest) -> list[list[int]]:
    """Accept a request that asks for blocks; what it is granted, now or later."""
    granted: list[list[int]] = []

    def grant(blocks: list[int]) -> None:
        granted.append(blocks)
        request.table = torch.tensor(blocks)

    scheduler.add(request)
    scheduler.ask_for_blocks(request, grant)
    return granted


def test_an_id_in_use_is_refused_until_its_request_has_ended() -> None:
    s = scheduler()
    (first, _), (second, _) = decoding("a"), decoding("a")
    s.add(first)
    with pytest.raises(InvalidRequest, match="request id a is in use"):
        s.add(second)
    s.finish(first, "stop")
    s.add(second)


def test_blocks_are_granted_in_the_order_of_asking_as_others_end() -> None:
    s = scheduler(blocks=8)
    requests = [sized(name, blocks)[0] for name, blocks in (("a", 6), ("b", 7), ("c", 1))]
    big, bigger, small = (asking(s, request) for request in requests)
    assert (len(big), bigger, small) == (1, [], [])
    assert s.counts() == {"running": 0, "waiting": 2, "receiving": 1, "used_blocks": 6, "total_blocks": 8}
    s.finish(requests[0], "stop")
    assert ([len(each) for each in bigger], [len(each) for each in small]) == ([7], [1])
    assert not set(bigger[0]) & set(small[0])


def test_one_that_ends_while_it_waits_is_granted_nothing() -> None:
    s = scheduler(blocks=4)
    (first, _), (second, second_got) = sized("a", 4), sized("b", 4)
    asking(s, first)
    granted = asking(s, second)
    s.finish(second, "cancelled")
    s.finish(first, "stop")
    assert granted == []
    assert second_got.reason == "cancelled"
    s.check_at_rest(0)


def test_a_step_has_those_whose_kv_is_here() -> None:
    s = scheduler()
    (first, _), (second, _) = sized("a", 2), sized("b", 2)
    for request in (first, second):
        asking(s, request)
    s.start(second)
    assert s.next_step() == [second]
    s.start(first)
    assert s.next_step() == [first, second]
    s.finish(second, "stop")
    assert s.next_step() == [first]


def test_the_step_loop_sleeps_until_somebody_runs() -> None:
    s = scheduler()
    request, _ = sized("a", 1)
    asking(s, request)
    steps: list[list[DecodingRequest] | None] = []
    loop = threading.Thread(target=lambda: steps.append(s.next_step()), daemon=True)
    loop.start()
    loop.join(0.05)
    assert steps == []
    s.start(request)
    loop.join(WAIT_SECONDS)
    assert steps == [[request]]


def test_tokens_are_counted_once_whether_an_answer_goes_on_or_ends() -> None:
    s = scheduler()
    request, collector = sized("a", 1)
    asking(s, request)
    s.emit(request, TOKEN)
    s.finish(request, "length", tokens=TOKEN)
    assert s.tokens_generated == len(collector.ids) == 2


def test_blocks_are_free_before_the_last_output_is_out() -> None:
    s = scheduler(blocks=2)
    request, _ = sized("a", 2)
    used: list[int] = []
    ending = DecodingRequest(
        request.request, lambda _: used.append(s.counts()["used_blocks"]), request.deadline
    )
    asking(s, ending)
    s.finish(ending, "stop")
    assert used == [0]


def test_a_failure_of_an_aborted_request_is_its_abort() -> None:
    s = scheduler()
    (failed, failed_got), (aborted, aborted_got) = decoding("a"), decoding("b")
    for request in (failed, aborted):
        s.add(request)
    s.abort("b")
    s.abort("nobody")
    for request in (failed, aborted):
        s.fail(request, HandoffError("rank 1 is gone"))
    assert (failed_got.reason, failed_got.last.error_kind) == ("error", "HandoffError")
    assert (aborted_got.reason, aborted_got.last.error) == ("cancelled", None)


def test_closing_answers_everybody_and_takes_nobody() -> None:
    s = scheduler()
    (running, running_got), (late, _) = sized("a", 1), decoding("b")
    asking(s, running)
    s.start(running)
    s.close(EngineDead("first"))
    s.close(EngineDead("second"))
    assert (running_got.reason, running_got.last.error) == ("error", "first")
    assert s.next_step() is None
    with pytest.raises(EngineDead, match="first"):
        s.add(late)


def test_rest_is_when_nobody_is_live() -> None:
    s = scheduler()
    request, _ = sized("a", 3)
    s.check_at_rest(0)
    asking(s, request)
    with pytest.raises(AuditError, match=r"1 requests are live, such as \['a'\], and 5 of 8 blocks are free"):
        s.check_at_rest(0.01)
    s.finish(request, "stop")
    s.check_at_rest(0)


def test_who_waits_for_blocks_is_counted_with_the_tokens_of_its_prompt() -> None:
    """Not who waits for its prefill: a planner would add decode workers where those that prefill are missing."""
    s = scheduler(blocks=8)
    (receives, _), (waits, _) = sized("a", 6), sized("b", 6)
    asking(s, receives)
    assert s.queued() == (0, 0)
    asking(s, waits)
    assert s.queued() == (1, waits.request.prompt_tokens)
    s.finish(receives, "stop")
    assert s.queued() == (0, 0)


def running(s: Scheduler, name: str, prompt_tokens: int, **values: Any) -> DecodingRequest:
    """A request with its first token, whose KV is here."""
    request, _ = sized(name, prompt_tokens, **{"max_tokens": 2, **values})
    assert asking(s, request)
    request.sequence.accept(7)
    s.start(request)
    return request


def test_an_answer_gets_blocks_as_it_grows() -> None:
    s = scheduler(blocks=400)
    request = running(s, "a", 10, max_tokens=300)
    assert request.table is not None
    # The last token is never run.
    assert len(request.table) == 10 + UNKNOWN - 1
    for _ in range(UNKNOWN - 1):
        request.sequence.accept(7)
    before = request.table
    assert s.next_step() == [request]
    assert len(request.table) == request.sequence.length == 10 + UNKNOWN
    assert torch.equal(request.table[:-1], before)
    assert s.preemptions == 0


def test_who_is_last_in_order_is_preempted_for_who_lacks_a_block_and_goes_on_when_there_is_room() -> None:
    s = scheduler(blocks=11)
    first = running(s, "a", 3, max_tokens=4)
    second = running(s, "b", 3)
    assert s.counts()["used_blocks"] == 6 + 4
    first.sequence.accept(7)
    first.sequence.accept(7)
    first.sequence.accept(7)
    assert s.next_step() == [first, second], "one was free"
    first.sequence.accept(7)
    assert s.next_step() == [first]
    assert (s.preemptions, second.table, second.state, second.sequence.left) == (1, None, -1, 4)
    assert (s.counts()["running"], s.counts()["waiting"], s.counts()["used_blocks"]) == (1, 1, 8)
    s.finish(first, "stop")
    assert s.next_step() == [second]
    assert second.table is not None
    assert len(second.table) == 4
    assert second.state >= 0
    s.finish(second, "stop")
    s.check_at_rest(0)


def test_what_others_do_not_need_yet_is_taken_back_before_anybody_is_preempted() -> None:
    s = scheduler(blocks=20)
    roomy = running(s, "a", 3, max_tokens=12)
    first_blocks = roomy.table
    tight = running(s, "b", 3)
    assert s.counts()["used_blocks"] == 14 + 4
    for _ in range(6):
        tight.sequence.accept(7)
    assert s.next_step() == [roomy, tight]
    assert s.preemptions == 0
    assert roomy.table is not None
    assert first_blocks is not None
    assert torch.equal(roomy.table, first_blocks[:4]), "its prompt and its first token"
    assert s.counts()["used_blocks"] == 4 + 10


def test_what_comes_free_by_a_preemption_is_given_to_who_is_first_in_the_queue() -> None:
    s = scheduler(blocks=10)
    first = running(s, "a", 2)
    second = running(s, "b", 5)
    urgent, _ = sized("c", 3, priority=1)
    assert asking(s, urgent) == []
    for _ in range(2):
        first.sequence.accept(7)
    assert s.next_step() == [first]
    assert (s.preemptions, second.table) == (1, None)
    assert urgent.table is not None, "six came free, of which one was missing"


def test_a_higher_priority_is_preempted_last() -> None:
    s = scheduler(blocks=9)
    low = running(s, "low", 3)
    high = running(s, "high", 3, priority=1)
    for _ in range(2):
        high.sequence.accept(7)
    assert s.next_step() == [high]
    assert low.table is None
    assert high.table is not None
    assert len(high.table) == 6


def test_one_that_has_nobody_behind_it_waits_for_who_is_about_to_run() -> None:
    s = scheduler(blocks=8)
    first = running(s, "a", 3)
    arriving, _ = sized("b", 3)
    assert asking(s, arriving)
    for _ in range(2):
        first.sequence.accept(7)
    steps: list[list[DecodingRequest] | None] = []
    loop = threading.Thread(target=lambda: steps.append(s.next_step()), daemon=True)
    loop.start()
    loop.join(0.05)
    assert steps == []
    arriving.sequence.accept(7)
    s.start(arriving)
    loop.join(WAIT_SECONDS)
    assert steps == [[first]]
    assert s.preemptions == 1


def test_who_asks_before_its_prompt_is_computed_keeps_no_block_from_who_is_first_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_lengths, "UNKNOWN", 1)
    s = scheduler(blocks=20)
    first = running(s, "a", 3, max_tokens=14)
    assert s.counts()["used_blocks"] == 3, "of 16 that it may come to need"
    (early, _), (late, _) = decoding("b", 5, max_tokens=1), sized("c", 6)
    waits, ready = asking(s, early), asking(s, late)
    assert (len(waits), len(ready)) == (0, 1)
    s.computed(early)
    assert len(waits) == 1
    s.finish(first, "stop")
    (small, _), (another, _) = decoding("d", 2), sized("e", 1)
    assert asking(s, small), "with it, too, there is enough for everybody"
    assert asking(s, another)


def test_nobody_is_preempted_for_blocks_that_who_is_over_is_about_to_give_back() -> None:
    s = scheduler(blocks=10)
    first, gone, last = running(s, "a", 1), running(s, "b", 1), running(s, "c", 1)
    for _ in range(6):
        first.sequence.accept(7)
    s.abort("b")
    assert s.next_step() == [gone]
    s.finish(gone, "cancelled")
    assert s.next_step() == [first, last]
    assert s.preemptions == 0


@pytest.mark.parametrize("how", ["aborted", "late"])
def test_a_preempted_request_that_is_over_is_given_to_who_ends_it(how: str) -> None:
    s = scheduler(blocks=9)
    first = running(s, "a", 3)
    second = running(s, "b", 3)
    for _ in range(2):
        first.sequence.accept(7)
    assert s.next_step() == [first]
    if how == "aborted":
        s.abort("b")
    else:
        second.deadline = time.monotonic() - 1
    assert s.next_step() == [second]
    s.finish(second, "cancelled")
    assert s.next_step() == [first]
    s.finish(first, "stop")
    s.check_at_rest(0)


def test_a_block_is_left_for_each_that_runs_before_another_is_admitted() -> None:
    s = scheduler(blocks=8)
    first = running(s, "a", 3)
    waiting, _ = sized("b", 4)
    assert asking(s, waiting) == [], "four of eight are free, one of which the first may need"
    s.finish(first, "stop")
    assert waiting.table is not None


def test_what_is_set_aside_follows_the_lengths_of_answers() -> None:
    s = scheduler(blocks=400)
    for n in range(20):
        request = running(s, f"r{n}", 3, max_tokens=50)
        for _ in range(4):
            request.sequence.accept(7)
        s.finish(request, "stop")
    request, _ = sized("last", 3, max_tokens=300)
    [[*blocks]] = asking(s, request)
    assert len(blocks) == 3 + 5 - 1


class Turns:
    """The step loop and the arrivals of KV, in random turns, on a scheduler; nothing is computed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.block_size = self.random.choice([1, 3, 16])
        # The pool holds the longest request, as the engine sees to.
        longest = self.random.randint(20, 60)
        blocks = -(-longest // self.block_size) + self.random.randint(0, 30)
        self.s = Scheduler(Batch(blocks, self.random.randint(1, 8)), self.block_size)
        self.waiting: list[tuple[DecodingRequest, int]] = []
        self.computing: list[DecodingRequest] = []
        self.arriving: list[DecodingRequest] = []
        self.lengths: dict[str, int] = {}
        self.ended: list[str] = []
        for n in range(self.random.randint(1, 25)):
            prompt = self.random.randint(1, longest - 1)
            most = self.random.randint(1, longest - prompt)
            request, _ = decoding(f"r{n}", prompt, max_tokens=most, priority=self.random.choice([0, 0, 1]))
            self.waiting.append((request, self.random.randint(1, most)))

    def ask(self) -> None:
        request, length = self.waiting.pop(self.random.randrange(len(self.waiting)))
        self.lengths[request.request_id] = length

        def granted(blocks: list[int]) -> None:
            request.table = torch.tensor(blocks)
            if request.computed:
                self.arriving.append(request)

        self.s.add(request)
        self.computing.append(request)
        self.s.ask_for_blocks(request, granted)

    def compute(self) -> None:
        request = self.computing.pop(self.random.randrange(len(self.computing)))
        held = request.table is not None
        self.s.computed(request)
        if held:
            self.arriving.append(request)

    def arrive(self) -> None:
        request = self.arriving.pop(self.random.randrange(len(self.arriving)))
        if self.random.random() < 0.1:
            self.end(request, "error")
        elif request.sequence.accept(7) is not None or self.lengths[request.request_id] == 1:
            self.end(request, "stop")
        else:
            self.s.start(request)

    def step(self) -> None:
        step = self.s.next_step()
        assert step
        tables = [request.table[: self.s._needed(request)] for request in step if request.table is not None]
        together = [block for table in tables for block in table.tolist()]
        assert len(set(together)) == len(together), "two write to one block"
        for request in step:
            if request.aborted:
                self.end(request, "cancelled")
                continue
            assert request.table is not None
            chunk = request.sequence.next_chunk(request.table, request.state, 256)
            assert chunk.start + chunk.length <= len(request.table) * self.block_size
            assert request.state >= 0
            request.sequence.ran(chunk)
            if (
                request.sequence.accept(7)
                or len(request.sequence.generated) >= self.lengths[request.request_id]
            ):
                self.end(request, "stop")

    def end(self, request: DecodingRequest, reason: Any) -> None:
        self.ended.append(request.request_id)
        self.s.finish(request, reason)

    def run(self) -> None:
        """Until all have ended; each turn brings that nearer, so there is a last one."""
        for _ in range(20_000):
            turns = [self.step] * 3 if self.s.counts()["running"] else []
            turns += [self.compute] if self.computing else []
            turns += [self.arrive] if self.arriving else []
            turns += [self.ask] if self.waiting else []
            if not turns:
                break
            turn = self.random.choice(turns)
            if turn == self.step and self.stands():
                turn = self.arrive
            turn()
            self.s._batch.check()
            if self.random.random() < 0.02 and self.s._live:
                name = self.random.choice(sorted(self.s._live))
                if name in self.s._batch.running or name in self.s._preempted:
                    self.s.abort(name)
        assert sorted(self.ended) == sorted(self.lengths), "nobody waits for ever"
        self.s.check_at_rest(0)

    def stands(self) -> bool:
        """Whether nobody can run until somebody's KV is here: a step would wait for that, but never for a prompt."""
        over = any(each.aborted for each in self.s._of_step_loop())
        stands = not over and not self.s._with_room()
        assert not stands or self.arriving
        return stands


@pytest.mark.parametrize("few", [1, 8])
@settings(max_examples=50, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_everybody_ends_whatever_the_turns(few: int, seed: int) -> None:
    with patch.object(answer_lengths, "UNKNOWN", few):
        Turns(seed).run()
