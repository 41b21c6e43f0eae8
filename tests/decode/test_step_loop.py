"""The step loop on a model that always wants the next number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from wavepp_worker.decode import answer_lengths, guide, step_loop
from wavepp_worker.decode.batch import Batch
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.guide import Guide
from wavepp_worker.decode.guide_turns import GuideTurns
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.decode.step_loop import StepLoop
from wavepp_worker.errors import EngineDead, WaveppError
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.stage import Chunk, StageOutput

from tests.support.decode_bench import Collector
from tests.support.decoding_requests import decoding
from tests.support.guided import SlowMatcher
from tests.support.waiting import WAIT_SECONDS, wait_until

VOCABULARY = 50


class CountingUp:
    """After token ``t`` the most probable one is ``t + 1``; ``before`` is called with every wave."""

    def __init__(self, before: Callable[[list[Chunk]], object] = lambda _: None) -> None:
        self.waves: list[list[tuple[int, int]]] = []
        self.before = before
        self.blind = False
        self.tokens: list[list[int]] = []

    def forward(self, tokens: torch.Tensor, chunks: list[Chunk], kv: Any) -> StageOutput:
        self.before(chunks)
        self.waves.append([(chunk.start, chunk.length) for chunk in chunks])
        assert len(tokens) == sum(chunk.length for chunk in chunks)
        self.tokens.append(tokens.tolist())
        lasts = torch.tensor([chunk.length for chunk in chunks]).cumsum(0) - 1
        wanted = [int(last) for last, chunk in zip(lasts, chunks, strict=True) if chunk.wants_logits]
        logits = torch.nn.functional.one_hot(tokens[wanted] + 1, VOCABULARY).float()
        return StageOutput({}, None if self.blind or not wanted else logits)


class Loop:
    def __init__(self, blocks: int = 100, **stage: Any) -> None:
        self.scheduler = Scheduler(Batch(blocks, 100), block_size=4)
        self.stage = CountingUp(**stage)
        kv: Any = None
        stage: Any = self.stage
        self.watched = Watched("step loop")
        self.loop = StepLoop(stage, kv, self.scheduler, 60.0, self.watched, StepBound(5.0, 50.0))
        self.left = 0

    def running(self, name: str, **values: Any) -> tuple[DecodingRequest, Collector]:
        """A request whose prompt and first token, 10, are here."""
        request, collector = decoding(name, **values)

        def last(output: Any) -> None:
            collector(output)
            if output.finish_reason is not None:
                self.left -= 1
                if not self.left:
                    self.scheduler.close(EngineDead("all have ended"))

        request = DecodingRequest(request.request, last, request.deadline)
        self.left += 1
        self.scheduler.add(request)

        def granted(blocks: list[int]) -> None:
            request.table = torch.tensor(blocks)

        request.computed = True
        self.scheduler.ask_for_blocks(request, granted)
        if request.request.handoff is not None:
            request.sequence.accept(10)
        self.scheduler.start(request)
        return request, collector


def test_each_step_runs_the_newest_token_of_everybody() -> None:
    loop = Loop()
    _, first = loop.running("a", prompt_tokens=4, max_tokens=4)
    _, second = loop.running("b", prompt_tokens=7, max_tokens=3)
    loop.loop.run()
    assert (first.ids, first.reason) == ([11, 12, 13], "length")
    assert (second.ids, second.reason) == ([11, 12], "length")
    assert loop.stage.waves == [[(4, 1), (7, 1)], [(5, 1), (8, 1)], [(6, 1)]]
    assert (loop.loop.steps, loop.loop.prompt_tokens_computed) == (3, 0)
    loop.scheduler.check_at_rest(0)


def test_a_stop_token_ends_the_answer_and_is_in_it() -> None:
    loop = Loop()
    _, collector = loop.running("a", max_tokens=20, stop_token_ids=(13,))
    loop.loop.run()
    assert (collector.ids, collector.reason) == ([11, 12, 13], "stop")


def test_an_aborted_request_takes_part_in_no_further_step() -> None:
    loop = Loop(before=lambda chunks: loop.scheduler.abort("b") if chunks[0].start == 5 else None)
    _, stays = loop.running("a", max_tokens=5)
    _, goes = loop.running("b", max_tokens=20)
    loop.loop.run()
    assert stays.reason == "length"
    assert (goes.reason, goes.ids) == ("cancelled", [11, 12])
    assert [len(wave) for wave in loop.stage.waves] == [2, 2, 1, 1]


def test_a_request_past_its_deadline_fails_alone() -> None:
    loop = Loop()
    _, late = loop.running("a", max_tokens=20, deadline=time.monotonic() - 1)
    _, other = loop.running("b", max_tokens=3)
    loop.loop.run()
    assert (late.last.error_kind, late.ids) == ("RequestTimeout", [])
    assert "request a did not finish within request_timeout=60 s" in (late.last.error or "")
    assert other.reason == "length"


def test_a_model_without_logits_ends_the_loop() -> None:
    loop = Loop()
    loop.running("a")
    loop.stage.blind = True
    with pytest.raises(WaveppError, match="needs all of its layers"):
        loop.loop.run()


def mask(*tokens: int) -> bytes:
    bits = sum(1 << token for token in tokens)
    return bits.to_bytes(-(-VOCABULARY // 8), "little")


def test_an_answer_is_of_what_its_guide_allows() -> None:
    loop = Loop()
    with ThreadPoolExecutor(1) as threads:
        guided, collector = loop.running("a", max_tokens=4)
        matcher = SlowMatcher(mask(20, 30))
        matcher.go.set()
        guided.sequence.guide = Guide(matcher, GuideTurns(threads, 1))
        _, free = loop.running("b", max_tokens=4)
        loop.loop.run()
    assert set(collector.ids) <= {20, 30}
    assert matcher.accepted == collector.ids
    assert (len(collector.ids), collector.reason) == (3, "length")
    assert free.ids == [11, 12, 13]


def test_who_does_not_know_yet_what_may_come_next_keeps_nobody_waiting() -> None:
    loop = Loop()
    matcher = SlowMatcher(mask(20))
    with ThreadPoolExecutor(1) as threads:
        guided, slow = loop.running("a", max_tokens=3)
        guided.sequence.guide = Guide(matcher, GuideTurns(threads, 1))
        _, free = loop.running("b", max_tokens=20)
        # Its guide answers only when the other one has ended.
        threading.Thread(target=lambda: (free.done.wait(WAIT_SECONDS), matcher.go.set())).start()
        loop.loop.run()
    assert free.ids == list(range(11, 30))
    assert slow.ids == [20, 20]
    waves = [len(wave) for wave in loop.stage.waves]
    assert waves == [2, *[1] * 18, 1], "its token has run once"


def test_an_answer_ends_that_its_guide_finds_complete_only_after_its_last_token_was_emitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guide, "DIRECT_SECONDS", 0.0)

    class Complete(SlowMatcher):
        def accept(self, token: int, aside: bool = False) -> bool:
            super().accept(token)
            wait_until(lambda: first.outputs)
            return True

    loop = Loop()
    with ThreadPoolExecutor(1) as threads:
        guided, first = loop.running("a", max_tokens=9)
        matcher = Complete(mask(20))
        matcher.go.set()
        guided.sequence.guide = Guide(matcher, GuideTurns(threads, 1))
        loop.loop.run()
    assert (first.ids, first.reason) == ([20], "stop")


def test_an_answer_that_its_guide_does_not_know_how_to_continue_fails_alone() -> None:
    class Lost(SlowMatcher):
        def allowed(self) -> bytes:
            raise WaveppError("no text at all goes on to match the grammar")

    loop = Loop()
    with ThreadPoolExecutor(1) as threads:
        guided, lost = loop.running("a", max_tokens=4)
        guided.sequence.guide = Guide(Lost(b""), GuideTurns(threads, 1))
        _, other = loop.running("b", max_tokens=4)
        loop.loop.run()
    assert (lost.last.error_kind, other.reason) == ("RequestFailed", "length")
    assert "no text at all goes on" in (lost.last.error or "")


def test_a_prompt_that_nobody_has_seen_runs_in_parts_beside_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_loop, "PROMPT_TOKENS", 3)
    loop = Loop()
    _, first = loop.running("a", prompt_tokens=5, max_tokens=3, handoff=None)
    _, second = loop.running("b", prompt_tokens=4, max_tokens=2, handoff=None)
    _, other = loop.running("c", prompt_tokens=7, max_tokens=6)
    loop.loop.run()
    assert (first.ids, first.reason) == ([5, 6, 7], "length")
    assert (second.ids, second.reason) == ([4, 5], "length")
    assert other.ids == [11, 12, 13, 14, 15]
    assert loop.stage.waves == [
        [(0, 3), (7, 1)],
        [(3, 2), (0, 1), (8, 1)],
        [(5, 1), (1, 3), (9, 1)],
        [(6, 1), (4, 1), (10, 1)],
        [(11, 1)],
    ]
    assert loop.stage.tokens[1] == [3, 4, 0, 11]
    assert loop.loop.prompt_tokens_computed == 9


def test_a_step_without_an_end_of_a_prompt_has_no_logits_to_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_loop, "PROMPT_TOKENS", 1)
    loop = Loop()
    _, alone = loop.running("a", prompt_tokens=3, max_tokens=1, handoff=None)
    loop.loop.run()
    assert (alone.ids, alone.reason) == ([3], "length")
    assert loop.stage.waves == [[(0, 1)], [(1, 1)], [(2, 1)]]


def test_a_preempted_request_runs_again_and_its_answer_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_lengths, "UNKNOWN", 4)
    monkeypatch.setattr(step_loop, "PROMPT_TOKENS", 5)
    loop = Loop(blocks=9)
    requests = [loop.running(name, prompt_tokens=6, max_tokens=18) for name in "ab"]
    loop.loop.run()
    for request, collector in requests:
        assert (collector.ids, collector.reason) == (list(range(11, 28)), "length")
        assert request.table is not None
        assert len(request.table) == 6
    assert loop.scheduler.preemptions == 1
    again = next(n for n, wave in enumerate(loop.stage.waves) if (0, 5) in wave)
    assert loop.stage.tokens[again][-5:] == [0, 1, 2, 3, 4]
    assert loop.stage.waves[again + 1] == [(5, 5)]
    assert loop.stage.tokens[again + 1] == [5, 10, 11, 12, 13], "its prompt, and then what it had generated"
    loop.scheduler.check_at_rest(0)
