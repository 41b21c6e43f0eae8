"""Who gets blocks, who runs, and who is told what, without a model or a thread of the engine's."""

from __future__ import annotations

import threading

import pytest
from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.errors import AuditError, EngineDead, HandoffError, InvalidRequest
from wavepp_worker.model.sampled_token import SampledToken

from tests.support.decoding_requests import decoding
from tests.support.waiting import WAIT_SECONDS

TOKEN = (SampledToken(7),)


def scheduler(blocks: int = 8, max_num_seqs: int = 8) -> Scheduler:
    return Scheduler(Batch(blocks, max_num_seqs))


def asking(scheduler: Scheduler, request: DecodingRequest, blocks: int) -> list[list[int]]:
    """Accept a request that asks for blocks; what it is granted, now or later."""
    granted: list[list[int]] = []
    scheduler.add(request)
    scheduler.ask_for_blocks(request, blocks, granted.append)
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
    requests = [decoding(name)[0] for name in "abc"]
    big, bigger, small = (asking(s, r, n) for r, n in zip(requests, (6, 7, 1), strict=True))
    assert (len(big), bigger, small) == (1, [], [])
    assert s.counts() == {"running": 0, "waiting": 2, "receiving": 1, "used_blocks": 6, "total_blocks": 8}
    s.finish(requests[0], "stop")
    assert ([len(each) for each in bigger], [len(each) for each in small]) == ([7], [1])
    assert not set(bigger[0]) & set(small[0])


def test_one_that_ends_while_it_waits_is_granted_nothing() -> None:
    s = scheduler(blocks=4)
    (first, _), (second, second_got) = decoding("a"), decoding("b")
    asking(s, first, 4)
    granted = asking(s, second, 4)
    s.finish(second, "cancelled")
    s.finish(first, "stop")
    assert granted == []
    assert second_got.reason == "cancelled"
    s.check_at_rest(0)


def test_a_step_has_those_whose_kv_is_here() -> None:
    s = scheduler()
    (first, _), (second, _) = decoding("a"), decoding("b")
    for request in (first, second):
        asking(s, request, 2)
    s.start(second)
    assert s.next_step() == [second]
    s.start(first)
    assert s.next_step() == [second, first]
    s.finish(second, "stop")
    assert s.next_step() == [first]


def test_the_step_loop_sleeps_until_somebody_runs() -> None:
    s = scheduler()
    request, _ = decoding()
    asking(s, request, 1)
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
    request, collector = decoding()
    asking(s, request, 1)
    s.emit(request, TOKEN)
    s.finish(request, "length", tokens=TOKEN)
    assert s.tokens_generated == len(collector.ids) == 2


def test_blocks_are_free_before_the_last_output_is_out() -> None:
    s = scheduler(blocks=2)
    request, _ = decoding()
    used: list[int] = []
    ending = DecodingRequest(
        request.request, lambda _: used.append(s.counts()["used_blocks"]), request.deadline
    )
    asking(s, ending, 2)
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
    (running, running_got), (late, _) = decoding("a"), decoding("b")
    asking(s, running, 1)
    s.start(running)
    s.close(EngineDead("first"))
    s.close(EngineDead("second"))
    assert (running_got.reason, running_got.last.error) == ("error", "first")
    assert s.next_step() is None
    with pytest.raises(EngineDead, match="first"):
        s.add(late)


def test_rest_is_when_nobody_is_live() -> None:
    s = scheduler()
    request, _ = decoding("a")
    s.check_at_rest(0)
    asking(s, request, 3)
    with pytest.raises(AuditError, match=r"1 requests are live, such as \['a'\], and 5 of 8 blocks are free"):
        s.check_at_rest(0.01)
    s.finish(request, "stop")
    s.check_at_rest(0)


def test_who_waits_for_blocks_is_counted_with_the_tokens_of_its_prompt() -> None:
    """Not who waits for its prefill: a planner would add decode workers where those that prefill are missing."""
    s = scheduler(blocks=8)
    (receives, _), (waits, _) = decoding("a"), decoding("b")
    asking(s, receives, 6)
    assert s.queued() == (0, 0)
    asking(s, waits, 6)
    assert s.queued() == (1, waits.request.prompt_tokens)
    s.finish(receives, "stop")
    assert s.queued() == (0, 0)
