"""The engine over a fake transport that carries real KV: what it generates, and that nothing leaks."""

from __future__ import annotations

import gc
import queue
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest
from wavepp_worker.errors import AuditError, ConfigError, EngineDead, HandoffError, InvalidRequest
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.model.stage import StageOutput

from tests.support.decode_bench import Collector
from tests.support.reference import Reference
from tests.support.waiting import wait_until

EOS = 299
LENGTHS = [1, 3, 4, 5, 17, 40, 41, 120]


def test_eight_at_once_equal_generate(bench: Any, prompt: Any, reference: Any) -> None:
    b = bench()
    prompts = [prompt(length) for length in LENGTHS]
    stops = (EOS, reference.generate(prompts[4], 24)[9])
    got = [b.submit(tokens, max_tokens=24 + i, stop_token_ids=stops) for i, tokens in enumerate(prompts)]
    for i, (tokens, collector) in enumerate(zip(prompts, got, strict=True)):
        expected = reference.generate(tokens, 24 + i, stops)
        assert collector.reason == ("stop" if expected[-1] in stops else "length")
        assert collector.ids == expected
    assert {collector.reason for collector in got} == {"stop", "length"}
    for tokens, collector in zip(prompts, got, strict=True):
        assert all(output.prompt_tokens == len(tokens) for output in collector.outputs)
        assert all(output.reused_tokens == len(tokens) // 2 for output in collector.outputs)
    stats = b.engine.stats()
    per_token = sum(kv.bytes_per_token for kv in b.prefill.ranks.kvs)
    assert stats.kv_bytes_received == sum(LENGTHS) * per_token
    assert stats.tokens_generated == sum(len(collector.ids) for collector in got)
    assert stats.prompt_tokens_computed == 0


def test_running_requests_share_steps(bench: Any, prompt: Any) -> None:
    b = bench()
    rooms = [b.prefill.room(prompt(9, seed), held=True) for seed in range(6)]
    got = [b.submit(b.room(at).tokens, at, max_tokens=50) for at in rooms]
    for at in rooms:
        b.room(at).offer.set()
        b.room(at).kv.set()
    assert {collector.reason for collector in got} == {"length"}
    assert b.engine.stats().steps < 2 * 49


def test_tokens_stream(bench: Any, prompt: Any) -> None:
    collector = bench().submit(prompt(9), max_tokens=5)
    assert collector.reason == "length"
    assert [len(output.tokens) for output in collector.outputs] == [1] * 5
    assert [output.finish_reason for output in collector.outputs] == [None] * 4 + ["length"]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, seed=5),
        SamplingParams(temperature=1.3, top_p=0.9, top_k=20, min_p=0.01, seed=6),
        SamplingParams(temperature=1.0, seed=7, repetition_penalty=1.5),
        SamplingParams(presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.2),
    ],
    ids=["temperature", "truncated", "repetition", "greedy penalties"],
)
def test_sampling_equals_plain_forwards(
    bench: Any, prompt: Any, reference: Any, params: SamplingParams
) -> None:
    b, tokens = bench(), prompt(21)
    others = [b.submit(prompt(30, seed), max_tokens=20) for seed in range(3)]
    first, again = (b.submit(tokens, sampling=params, max_tokens=16) for _ in range(2))
    assert first.reason == again.reason == "length"
    assert first.ids == again.ids == reference.sampled(tokens, 16, params)
    assert {other.reason for other in others} == {"length"}


def test_without_a_seed_each_request_draws_its_own(bench: Any, prompt: Any) -> None:
    b = bench()
    params = SamplingParams(temperature=1.5)
    got = [b.submit(prompt(21), b.prefill.room(prompt(21)), sampling=params) for _ in range(2)]
    assert {collector.reason for collector in got} == {"length"}
    assert got[0].ids != got[1].ids


def test_logprobs_are_the_plain_forwards(bench: Any, prompt: Any, reference: Any) -> None:
    b, tokens = bench(), prompt(33)
    params = SamplingParams(temperature=1.0, seed=3, logprobs=5, presence_penalty=1.0)
    collector = b.submit(tokens, sampling=params, max_tokens=10, min_tokens=10, stop_token_ids=(EOS, 4, 5))
    assert collector.reason == "length"
    plain = torch.log_softmax(reference.logits([*tokens, *collector.ids])[len(tokens) - 1 :], -1)
    for token, row in zip(collector.tokens, plain, strict=False):
        assert token.logprob == pytest.approx(float(row[token.token]), abs=1e-4)
        best = torch.topk(row, 5)
        assert [each for each, _ in token.top] == best.indices.tolist()
        assert [value for _, value in token.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_stop_ids_end_the_text_with_the_stop_token(bench: Any, prompt: Any, reference: Any) -> None:
    b, tokens = bench(), prompt(40)
    plain = reference.generate(tokens, 12)
    stop = next(token for i, token in enumerate(plain) if token not in plain[:i] and i >= 4)
    collector = b.submit(tokens, stop_token_ids=(EOS, stop))
    assert collector.reason == "stop"
    assert collector.ids == plain[: plain.index(stop) + 1]


def test_first_token_that_stops_or_fills_needs_no_step(bench: Any, prompt: Any, reference: Any) -> None:
    b, tokens = bench(), prompt(40)
    first = reference.generate(tokens, 1)
    stopped = b.submit(tokens, stop_token_ids=(first[0],))
    filled = b.submit(tokens, max_tokens=1)
    assert (stopped.reason, filled.reason) == ("stop", "length")
    assert stopped.ids == filled.ids == first
    assert b.engine.stats().steps == 0


def test_min_tokens_chooses_others_instead_of_stop_tokens(bench: Any, prompt: Any, reference: Any) -> None:
    b, tokens = bench(), prompt(40)
    stops = tuple(sorted(set(reference.generate(tokens, 12)[1:])))
    assert b.submit(tokens, stop_token_ids=stops, max_tokens=30).reason == "stop"
    collector = b.submit(tokens, stop_token_ids=stops, min_tokens=6, max_tokens=6)
    assert collector.reason == "length"
    assert len(collector.ids) == 6
    assert not set(collector.ids[1:]) & set(stops)


def test_max_tokens_is_cut_to_the_context(bench: Any, prompt: Any, reference: Any) -> None:
    b = bench(max_model_len=48, kv_tokens=48)
    for length, count in [(40, 8), (47, 1), (48, 1)]:
        collector = b.submit(prompt(length), max_tokens=10**9)
        assert collector.reason == "length"
        assert collector.ids == reference.generate(prompt(length), count)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tokens": np.zeros(0, np.uint32)}, "prompt is empty"),
        ({"tokens": np.zeros(513, np.uint32)}, "513 tokens, this worker accepts at most 512"),
        ({"tokens": np.array([1, 300])}, "token id 300 is outside the vocabulary of 300"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 13}, "from 0 to max_tokens=12"),
        ({"min_tokens": 1, "stop_token_ids": tuple(range(300))}, "all 300 tokens of the vocabulary"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature is -1.0"),
        ({"sampling": SamplingParams(logprobs=21)}, "logprobs is 21"),
    ],
)
def test_bad_requests_are_refused_at_once(
    bench: Any, prompt: Any, values: dict[str, Any], sentence: str
) -> None:
    b = bench()
    at = b.prefill.room(prompt(4))
    with pytest.raises(InvalidRequest, match=sentence):
        b.submit(**{"tokens": prompt(4), "at": at, **values})
    assert b.engine.stats().waiting == 0


def test_a_duplicate_id_is_refused_and_the_first_lives(bench: Any, prompt: Any) -> None:
    b = bench()
    at = b.prefill.room(prompt(4), held=True)
    collector = b.submit(prompt(4), at, request_id="same")
    with pytest.raises(InvalidRequest, match="same is in use"):
        b.submit(prompt(4), request_id="same")
    b.room(at).offer.set()
    b.room(at).kv.set()
    assert collector.reason == "length"
    assert b.submit(prompt(4), request_id="same").reason == "length"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kv_tokens": 511}, "kv_tokens gives a pool of 508 tokens .* one request of 512"),
        ({"max_model_len": 8193}, "max_model_len is 8193, .* context length is 8192"),
        ({"model": Path("/nowhere")}, "model"),
        ({"device": "cuda:99"}, "device"),
    ],
)
def test_what_cannot_start_says_which_key(tiny_llama: Path, values: dict[str, Any], sentence: str) -> None:
    fields = {"model": tiny_llama, "max_model_len": 512, "kv_tokens": 512, "block_size": 4, **values}
    with pytest.raises(ConfigError, match=sentence):
        DecodeEngine(DecodeConfig(**fields)).start()


def test_unknown_keys_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"^speed: unknown"):
        DecodeConfig(model=tiny_llama, speed=1)  # type: ignore[call-arg]


class TestAbort:
    def test_before_the_offer(self, bench: Any, prompt: Any) -> None:
        b = bench()
        at = b.prefill.room(prompt(4), held=True)
        collector = b.submit(prompt(4), at)
        wait_until(lambda: b.engine.stats().waiting == 1)
        b.engine.abort("r0")
        assert collector.reason == "cancelled"
        assert collector.ids == []

    def test_at_once(self, bench: Any, prompt: Any) -> None:
        b = bench()
        for _ in range(20):
            at = b.prefill.room(prompt(4), held=True)
            collector = b.submit(prompt(4), at)
            b.engine.abort(f"r{b.submitted - 1}")
            assert collector.reason == "cancelled"

    def test_before_kv_arrivals_knows_of_it(self, bench: Any, prompt: Any, monkeypatch: Any) -> None:
        b = bench()
        submit = b.engine._arrivals.submit

        def abort_then_submit(live: Any) -> None:
            b.engine.abort(live.request.request_id)
            submit(live)

        monkeypatch.setattr(b.engine._arrivals, "submit", abort_then_submit)
        collector = b.submit(prompt(4), b.prefill.room(prompt(4), held=True))
        assert collector.reason == "cancelled"

    def test_while_it_waits_for_room(self, bench: Any, prompt: Any) -> None:
        b = bench(kv_tokens=512)
        holder = b.prefill.room(prompt(500), held=True)
        first = b.submit(prompt(500), holder, max_tokens=12)
        b.room(holder).offer.set()
        assert b.room(holder).allocated.wait(10)
        waiting = b.prefill.room(prompt(12))
        second = b.submit(prompt(12), waiting, max_tokens=4)
        assert b.room(waiting).asked.wait(10)
        assert b.engine.stats().waiting == 1
        b.engine.abort("r1")
        assert second.reason == "cancelled"
        assert b.room(waiting).cancelled.is_set()
        assert b.engine.stats().used_blocks == 511 // 4 + 1
        b.engine.abort("r0")
        assert first.reason == "cancelled"

    def test_while_kv_arrives(self, bench: Any, prompt: Any) -> None:
        b = bench()
        at = b.prefill.room(prompt(12), held=True)
        b.room(at).offer.set()
        collector = b.submit(prompt(12), at)
        assert b.room(at).allocated.wait(10)
        assert b.engine.stats().receiving == 1
        b.engine.abort("r0")
        assert collector.reason == "cancelled"
        assert b.room(at).cancelled.is_set()
        assert b.engine.stats().used_blocks == 0

    def test_while_it_runs(self, bench: Any, prompt: Any, reference: Any) -> None:
        b = bench()
        other = b.submit(prompt(30), max_tokens=60)
        collector = b.submit(prompt(12), max_tokens=500)
        collector.wait_for_tokens(3)
        b.engine.abort("r1")
        assert collector.reason == "cancelled"
        assert 3 <= len(collector.ids) < 500
        assert other.reason == "length"
        assert other.ids == reference.generate(prompt(30), 60)

    def test_from_its_own_callback(self, bench: Any, prompt: Any) -> None:
        b = bench()
        reasons: queue.Queue[str | None] = queue.Queue()

        def on_output(output: DecodeOutput) -> None:
            b.engine.abort("self")
            reasons.put(output.finish_reason)

        b.engine.submit(b.request(prompt(12), request_id="self", max_tokens=400), on_output)
        assert reasons.get(timeout=10) is None
        while (reason := reasons.get(timeout=10)) is None:
            pass
        assert reason == "cancelled"

    def test_unknown_and_finished(self, bench: Any, prompt: Any) -> None:
        b = bench()
        b.engine.abort("nobody")
        assert b.submit(prompt(4)).reason == "length"
        b.engine.abort("r0")


def test_full_pool_waits_and_then_runs_in_order(bench: Any, prompt: Any, reference: Any) -> None:
    b = bench(kv_tokens=96, max_model_len=96)
    first = b.prefill.room(prompt(40), held=True)
    b.room(first).offer.set()
    got = [b.submit(prompt(40), first, max_tokens=20)]
    assert b.room(first).allocated.wait(10)
    for length, count in [(41, 25), (5, 20), (39, 20), (9, 50)]:
        at = b.prefill.room(prompt(length))
        got.append(b.submit(prompt(length), at, max_tokens=count))
        assert b.room(at).asked.wait(10)
    assert b.engine.stats().waiting == 4, "the small one fits, but it is not its turn"
    b.room(first).kv.set()
    for collector in got:
        assert collector.reason == "length"
        room = b.prefill.rooms[got.index(collector)]
        assert collector.ids == reference.generate(room.tokens, len(collector.ids))


def test_answers_that_lose_their_blocks_to_others_are_what_they_would_have_been(
    bench: Any, prompt: Any, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavepp_worker.decode.answer_lengths.UNKNOWN", 1)
    b = bench(kv_tokens=160, max_model_len=120)
    prompts = [prompt(length, length) for length in (30, 7, 41, 16, 2, 33)]
    got = [b.submit(tokens, max_tokens=70) for tokens in prompts]
    for tokens, collector in zip(prompts, got, strict=True):
        assert collector.reason == "length"
        assert collector.ids == reference.generate(tokens, 70)
    assert b.engine.stats().preemptions > 0


def test_preempted_answers_of_recurrent_layers_begin_with_no_state(
    tiny_model: Any, prompt: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavepp_worker.decode.answer_lengths.UNKNOWN", 1)
    model = tiny_model("qwen3_next")
    config = DecodeConfig(model=model, dtype="float32", kv_tokens=96, max_model_len=80, block_size=4)
    plain, asked = Reference(model), []
    with DecodeEngine(config) as engine:
        for n, length in enumerate((20, 9, 14)):
            outputs, tokens = Collector(), prompt(length, n)
            request = DecodeRequest(
                request_id=f"r{n}", tokens=token_ids.pack(tokens), max_tokens=40, handoff=None
            )
            engine.submit(request, outputs)
            asked.append((tokens, outputs))
        for tokens, outputs in asked:
            assert outputs.last.error is None
            assert outputs.ids == plain.generate(tokens, 40)
        assert engine.stats().preemptions > 0


def test_who_asks_for_a_long_answer_keeps_nobody_waiting_that_has_room(bench: Any, prompt: Any) -> None:
    b = bench(kv_tokens=600)
    long = [b.submit(prompt(12, seed), max_tokens=500) for seed in range(2)]
    assert b.submit(prompt(12), max_tokens=2).reason == "length"
    assert not any(collector.done.is_set() for collector in long)
    for n in range(2):
        b.engine.abort(f"r{n}")


def test_max_batch_is_kept(bench: Any, prompt: Any) -> None:
    b = bench(max_num_seqs=2)
    got = [b.submit(prompt(9, seed), max_tokens=30) for seed in range(6)]
    most = 0
    while not all(collector.done.is_set() for collector in got):
        stats = b.engine.stats()
        most = max(most, stats.running + stats.receiving)
        time.sleep(0.001)
    assert most <= 2
    assert {collector.reason for collector in got} == {"length"}


@pytest.mark.parametrize(
    ("values", "kind", "sentence"),
    [
        ({"error": HandoffError("rank 1 is gone")}, "HandoffError", "rank 1 is gone"),
        ({"error": OSError("broken")}, "HandoffError", "OSError: broken"),
        ({"first": 300}, "HandoffError", "first token 300 of request r1 is outside the vocabulary"),
        ({"prompt_tokens": 11}, "HandoffError", "prompt of 12 tokens, but bootstrap_room 1 offers KV of 11"),
    ],
)
def test_a_failed_handoff_hurts_nobody_else(
    bench: Any, prompt: Any, reference: Any, values: dict[str, Any], kind: str, sentence: str
) -> None:
    b = bench()
    good = b.submit(prompt(30), max_tokens=40)
    bad = b.submit(prompt(12), b.prefill.room(prompt(12), **values))
    assert bad.reason == "error"
    assert bad.last.error_kind == kind
    assert sentence in (bad.last.error or "")
    assert good.reason == "length"
    assert good.ids == reference.generate(prompt(30), 40)


def test_handoff_timeout(bench: Any, prompt: Any) -> None:
    b = bench(handoff_timeout=0.1)
    collector = b.submit(prompt(12), b.prefill.room(prompt(12), held=True))
    assert collector.last.error_kind == "RequestTimeout"
    assert "within 0.1 s" in (collector.last.error or "")


def test_request_timeout_while_running(bench: Any, prompt: Any, monkeypatch: Any) -> None:
    b = bench(request_timeout=0.2)
    forward = b.engine._loop._stage.forward

    def slow(*arguments: Any) -> Any:
        # 500 steps of a model this small take less than the timeout on a fast machine.
        time.sleep(0.002)
        return forward(*arguments)

    monkeypatch.setattr(b.engine._loop._stage, "forward", slow)
    collector = b.submit(prompt(12), max_tokens=500)
    assert collector.last.error_kind == "RequestTimeout"
    assert "request_timeout" in (collector.last.error or "")
    assert collector.ids


def test_bad_logits_end_only_their_request(bench: Any, prompt: Any, monkeypatch: Any) -> None:
    b = bench()
    forward = b.engine._loop._stage.forward

    def poisoned(inputs: Any, chunks: Any, kv: Any) -> Any:
        output = forward(inputs, chunks, kv)
        for row, chunk in enumerate(chunks):
            if chunk.start == 14:
                rows = output.logits.clone()
                rows[row] = float("nan")
                output = StageOutput({}, rows)
        return output

    monkeypatch.setattr(b.engine._loop._stage, "forward", poisoned)
    good, bad = b.submit(prompt(30)), b.submit(prompt(12))
    assert bad.last.error_kind == "RequestFailed"
    assert len(bad.ids) == 3
    assert good.reason == "length"


def test_a_failing_callback_ends_only_its_request(bench: Any, prompt: Any) -> None:
    b = bench()
    good = b.submit(prompt(30), max_tokens=40)
    calls = []

    def broken(output: DecodeOutput) -> None:
        calls.append(output.finish_reason)
        raise ValueError("no")

    b.engine.submit(b.request(prompt(12), max_tokens=400), broken)
    assert good.reason == "length"
    b.engine.audit()
    assert calls == [None, "cancelled"]


def test_a_failing_step_kills_the_engine_and_answers_everybody(
    bench: Any, prompt: Any, monkeypatch: Any
) -> None:
    b = bench()
    forward = b.engine._loop._stage.forward

    def broken(inputs: Any, chunks: Any, kv: Any) -> Any:
        if len(chunks) == 3:
            raise RuntimeError("the device is on fire")
        return forward(inputs, chunks, kv)

    monkeypatch.setattr(b.engine._loop._stage, "forward", broken)
    held = b.prefill.room(prompt(12), held=True)
    receiving = b.submit(prompt(12), held)
    b.room(held).offer.set()
    assert b.room(held).allocated.wait(10)
    running = [b.submit(prompt(9, seed), max_tokens=200) for seed in range(3)]
    for collector in [*running, receiving]:
        assert collector.reason == "error"
        assert collector.last.error_kind == "EngineDead"
        assert "the device is on fire" in (collector.last.error or "")
    wait_until(lambda: b.deaths)
    assert len(b.deaths) == 1
    assert b.room(held).cancelled.wait(10)
    assert not b.engine.alive
    with pytest.raises(EngineDead, match="on fire"):
        b.submit(prompt(12))
    with pytest.raises(EngineDead, match="on fire"):
        b.engine.audit()


@pytest.mark.parametrize("place", ["step loop", "KV arrivals"])
def test_a_hung_thread_kills_the_engine_and_answers_everybody(
    bench: Any, prompt: Any, monkeypatch: Any, place: str
) -> None:
    """S53: nobody else notices, and who waits for its tokens waits for ever."""
    b = bench(wave_timeout=1.0)
    assert b.submit(prompt(12), max_tokens=3).reason == "length"
    release = threading.Event()
    try:
        began = time.monotonic()
        if place == "step loop":
            monkeypatch.setattr(b.engine._loop._stage, "forward", lambda *_: release.wait(60))
        else:
            b.engine._arrivals._call(lambda: release.wait(60))
        waiting = b.submit(prompt(12), max_tokens=200)
        wait_until(lambda: b.deaths)
        assert time.monotonic() - began >= 1.0
        assert waiting.reason == "error"
        assert f"the {place} thread has been busy with" in (waiting.last.error or "")
        assert waiting.last.error_kind == "EngineDead"
        assert not b.engine.alive
    finally:
        release.set()


def test_close_answers_everybody_and_is_idempotent(bench: Any, prompt: Any) -> None:
    b = bench()
    held = b.prefill.room(prompt(12), held=True)
    receiving, running = b.submit(prompt(12), held), b.submit(prompt(30), max_tokens=400)
    running.wait_for_tokens(2)
    b.engine.close()
    b.engine.close()
    for collector in (receiving, running):
        assert collector.reason == "error"
        assert collector.last.error_kind == "EngineDead"
    assert b.room(held).cancelled.is_set()
    with pytest.raises(EngineDead, match="not running"):
        b.submit(prompt(12))
    assert b.deaths == []
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"kv arrivals", "step loop"}


def test_audit_names_what_is_still_live(bench: Any, prompt: Any) -> None:
    b = bench()
    at = b.prefill.room(prompt(12), held=True)
    b.submit(prompt(12), at)
    with pytest.raises(AuditError, match="'r0'"):
        b.engine.audit(0.05)
    b.engine.abort("r0")


def test_requests_leave_no_objects_behind(bench: Any, prompt: Any) -> None:
    """Books that balance do not show what is kept beside them, such as a task, a timer or a callback a request."""
    b = bench()

    def objects_after(requests: int) -> Counter[str]:
        for i in range(requests):
            collector = b.submit(prompt(9), max_tokens=1 + i % 3)
            if i % 8 == 0:
                b.engine.abort(f"r{b.submitted - 1}")
            assert collector.reason in ("length", "cancelled")
            # What the test itself keeps.
            b.collectors.clear()
            b.prefill.rooms.clear()
        b.engine.audit()
        gc.collect()
        return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())

    objects_after(40)
    before, requests = objects_after(40), 320
    more = objects_after(requests) - before
    # An event loop keeps up to a hundred timers that were cancelled.
    assert {kind: count for kind, count in more.items() if count > requests / 2} == {}


@pytest.mark.parametrize(("kv_tokens", "expected"), [(512, 256), (132, 1)])
def test_nothing_leaks_over_random_traffic(
    bench: Any, prompt: Any, monkeypatch: pytest.MonkeyPatch, kv_tokens: int, expected: int
) -> None:
    monkeypatch.setattr("wavepp_worker.decode.answer_lengths.UNKNOWN", expected)
    b = bench(kv_tokens=kv_tokens, max_model_len=130, max_num_seqs=6)
    rng = random.Random(4)
    got = []
    for i in range(120):
        tokens = prompt(rng.randint(1, 60), i)
        kind = rng.random()
        values: dict[str, Any] = {"held": kind < 0.2}
        if 0.2 <= kind < 0.3:
            values["error"] = HandoffError("lost")
        at = b.prefill.room(tokens, **values)
        if rng.random() < 0.5:
            b.room(at).offer.set()
        collector = b.submit(tokens, at, max_tokens=rng.randint(1, 60))
        got.append(collector)
        if kind < 0.2 or rng.random() < 0.2:
            threading.Timer(rng.random() * 0.05, b.engine.abort, [f"r{b.submitted - 1}"]).start()
        if rng.random() < 0.1:
            with pytest.raises(InvalidRequest):
                b.submit(tokens, at, request_id="bad", max_tokens=0)
    reasons = {collector.reason for collector in got}
    assert reasons == {"length", "error", "cancelled"}
    assert (b.engine.stats().preemptions > 0) == (expected == 1)
