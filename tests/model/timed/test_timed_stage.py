"""Timed stages: virtual devices end their work when the cost model says, and answer the right prompt."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import ConfigError, HandoffMismatch, WaveppError
from wavepp_worker.model.stage import Chunk, StageOutput
from wavepp_worker.model.timed.timed_model import Link, TimedModel, write_timed_model
from wavepp_worker.model.timed.timed_stage import TimedKV, TimedStage, expected_token
from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.timed_models import VOCABULARY, timed_model

BLOCK = 16


class Pipeline:
    """Stages on a clock that stands still, so that only the queues make time pass."""

    def __init__(self, model: TimedModel, stages: int, blocks: int = 64) -> None:
        self.now = 0
        size = model.layers // stages
        self.stages = [
            TimedStage(model, range(s * size, (s + 1) * size), lambda: self.now) for s in range(stages)
        ]
        self.kvs = [stage.make_kv(blocks, BLOCK) for stage in self.stages]

    def wave(self, tokens: list[int], chunks: list[Chunk]) -> tuple[StageOutput, list[float]]:
        """Launch one wave on every stage; its output, and when each stage is done with it."""
        inputs: Any = torch.tensor(tokens)
        ends = []
        for stage, kv in zip(self.stages, self.kvs, strict=True):
            output = stage.forward(inputs, chunks, kv)
            assert isinstance(output.done, Ending)
            ends.append(output.done.at / 1e9)
            inputs = output.activations
        return output, ends

    def run(self, prompt: list[int], table: torch.Tensor, step: int, start: int = 0) -> tuple[int, float]:
        """Prefill a prompt from ``start`` in chunks of ``step``; its next token, and when it is done."""
        for begin in range(start, len(prompt), step):
            part = prompt[begin : begin + step]
            last = begin + step >= len(prompt)
            output, ends = self.wave(part, [Chunk(begin, len(part), table, last)])
        assert output.logits is not None
        return int(output.logits[0].argmax()), ends[-1]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_equal_chunks_fill_the_pipeline_as_the_closed_form_says(stages: int) -> None:
    waves, step = 20, 32
    pipeline = Pipeline(timed_model(), stages)
    prompt = random.Random(0).choices(range(VOCABULARY), k=waves * step)
    _, done = pipeline.run(prompt, torch.arange(40), step)
    turn = 8 / stages * (0.01 + 0.001 * step)
    assert done == pytest.approx((waves + stages - 1) * turn + (stages - 1) * 0.5)


def test_context_costs_what_each_token_attends_to() -> None:
    model = timed_model(context_seconds=1e-6, wave_seconds=0.0)
    whole = model.wave_time(8, [(0, 90)])
    parts = model.wave_time(8, [(0, 40)]) + model.wave_time(8, [(40, 50)])
    by_hand = 8 * (0.001 * 90 + 1e-6 * sum(range(1, 91)))
    assert whole == pytest.approx(parts) == pytest.approx(by_hand)
    assert timed_model(speed=4.0).wave_time(8, [(0, 90)]) == pytest.approx(
        timed_model().wave_time(8, [(0, 90)]) / 4
    )


def test_launching_returns_at_once_and_work_ends_in_order() -> None:
    pipeline = Pipeline(timed_model(hop=Link(latency=0.0, bandwidth=1.0)), 2)
    tables = [torch.arange(0, 8), torch.arange(8, 16), torch.arange(16, 24)]
    begun = time.perf_counter()
    ends = [pipeline.wave([1] * n, [Chunk(0, n, tables[i], True)])[1] for i, n in enumerate((100, 10, 100))]
    assert time.perf_counter() - begun < 0.2
    turns = [4 * (0.01 + 0.001 * n) for n in (100, 10, 100)]
    assert [end for end, _ in ends] == pytest.approx([turns[0], turns[0] + turns[1], sum(turns)])
    assert all(earlier[1] < later[1] for earlier, later in pairwise(ends))
    # The short wave waits on the second stage for the long one, and the next long one for its first stage.
    assert [end for _, end in ends] == pytest.approx(
        [2 * turns[0], 2 * turns[0] + turns[1], sum(turns) + turns[2]]
    )
    pipeline.now = int(100e9)
    _, late = pipeline.wave([1] * 10, [Chunk(0, 10, tables[0], True)])
    assert late == pytest.approx([100 + turns[1], 100 + 2 * turns[1]])


def test_copies_run_beside_waves_and_only_waves_that_need_them_wait() -> None:
    pipeline = Pipeline(timed_model(to_host=Link(latency=0.0, bandwidth=2000.0)), 1)
    kv = pipeline.kvs[0]
    _, first = pipeline.wave([1] * 32, [Chunk(0, 32, torch.tensor([0, 1]), False)])
    saved = kv.export_blocks(torch.tensor([0, 1]))
    kv.import_blocks(torch.tensor([4, 5]), saved)
    copy = 2 * BLOCK * 8 * 10 / 2000
    _, other = pipeline.wave([1] * 32, [Chunk(0, 32, torch.tensor([8, 9]), False)])
    assert other[0] == pytest.approx(2 * first[0])
    # The blocks are copied out once their wave is done, and may be written again when they are.
    _, over = pipeline.wave([1] * 32, [Chunk(0, 32, torch.tensor([0, 1]), False)])
    assert over[0] == pytest.approx(first[0] + copy + first[0])


def test_waves_wait_for_blocks_on_their_way_from_the_host() -> None:
    pipeline = Pipeline(timed_model(), 1)
    kv = pipeline.kvs[0]
    kv.import_blocks(torch.arange(4), torch.zeros(4, kv.block_bytes, dtype=torch.uint8))
    _, ends = pipeline.wave([1], [Chunk(0, 1, torch.tensor([3]), False)])
    assert ends[0] == pytest.approx(4 * BLOCK * 8 * 10 / 8000 + 8 * 0.011)


@pytest.mark.parametrize("step", [1, 7, 16, 33, 1000])
def test_any_chunking_packing_and_reuse_gives_the_token_of_the_prompt(step: int) -> None:
    draw = random.Random(step)
    pipeline = Pipeline(timed_model(), 4)
    prompt = draw.choices(range(VOCABULARY), k=100)
    table = torch.randperm(32)[:7]
    assert pipeline.run(prompt, table, step)[0] == expected_token(prompt, VOCABULARY)
    follow_up = prompt[:48] + draw.choices(range(VOCABULARY), k=30)
    shared = torch.cat([table[:3], torch.arange(40, 42)])
    assert pipeline.run(follow_up, shared, step, start=48)[0] == expected_token(follow_up, VOCABULARY)
    one, two = [5, 6, 7], [7, 6, 5]
    packed = [Chunk(0, 3, torch.tensor([50]), True), Chunk(0, 3, torch.tensor([51]), True)]
    output, _ = pipeline.wave(one + two, packed)
    assert output.logits is not None
    assert output.logits.argmax(-1).tolist() == [expected_token(p, VOCABULARY) for p in (one, two)]
    assert expected_token(one, VOCABULARY) != expected_token(two, VOCABULARY)


def test_what_comes_back_from_the_host_is_as_good_as_what_left() -> None:
    pipeline = Pipeline(timed_model(), 2)
    prompt = list(range(64))
    pipeline.wave(prompt[:48], [Chunk(0, 48, torch.arange(3), False)])
    for kv in pipeline.kvs:
        saved = kv.export_blocks(torch.arange(3))
        assert saved.shape == (3, kv.block_bytes)
        kv.import_blocks(torch.arange(10, 13), saved.clone())
    back = torch.tensor([10, 11, 12, 20])
    assert pipeline.run(prompt, back, 16, start=48)[0] == expected_token(prompt, VOCABULARY)


def test_a_wrong_block_is_an_error_not_a_wrong_answer() -> None:
    pipeline = Pipeline(timed_model(), 2)
    pipeline.wave([1] * 32, [Chunk(0, 32, torch.tensor([0, 1]), False)])
    with pytest.raises(WaveppError, match="starts at token 32, but block 5 holds tokens up to 0"):
        pipeline.wave([1] * 8, [Chunk(32, 8, torch.tensor([0, 5, 2]), False)])
    second = pipeline.kvs[1]
    second.write(torch.tensor([1]).numpy(), 0, 16, torch.tensor([99]).numpy().astype("uint64"))
    second._entries[1, 0] = 32
    with pytest.raises(WaveppError, match="hold different tokens before token 32"):
        pipeline.wave([1] * 8, [Chunk(32, 8, torch.tensor([0, 1, 2]), False)])


def test_millions_of_tokens_of_kv_cost_next_to_nothing() -> None:
    kv = TimedKV(timed_model(), range(8), 8_000_000 // 64, 64, time.monotonic_ns)
    assert kv.block_bytes * kv.num_blocks < 4 << 20


def test_an_engine_on_timed_stages_takes_the_time_of_its_devices(tmp_path: Path) -> None:
    """Four rank processes; 40 waves of 2 virtual seconds at speed 20."""
    stages, step, count, speed = 4, 512, 8, 20.0
    model = timed_model(
        wave_seconds=0.1, token_seconds=0.9 / step, hop=Link(latency=0.01, bandwidth=1.0), speed=speed
    )
    draw = random.Random(0)
    prompts = [draw.choices(range(VOCABULARY), k=5 * step) for _ in range(count)]
    config = EngineConfig(
        model=write_timed_model(tmp_path, model),
        pp=stages,
        max_num_batched_tokens=step,
        kv_tokens=1_000_000,
        planner="greedy",
    )
    with PrefillEngine(config) as engine:
        engine.prefill([1, 2, 3])
        follow_up = [*prompts[0][:-1], 5]
        begun = time.perf_counter()
        requests = [PrefillRequest.of(f"timed-{i}", prompt) for i, prompt in enumerate(prompts)]
        results = [future.result() for future in [engine.submit(request) for request in requests]]
        virtual = (time.perf_counter() - begun) * speed
        again = engine.prefill(follow_up)
        engine.audit()
    turn = 8 / stages * (0.1 + 0.9)
    ideal = (5 * count + stages - 1) * turn + (stages - 1) * 0.01
    assert [result.first_token for result in results] == [expected_token(p, VOCABULARY) for p in prompts]
    assert again.first_token == expected_token(follow_up, VOCABULARY)
    assert again.reused_tokens == 5 * step - 16
    assert ideal <= virtual < 1.1 * ideal
    assert all(stage.compute * speed == pytest.approx(5 * turn) for stage in results[0].timings.stages)


def test_nixl_is_refused_at_start(tmp_path: Path) -> None:
    model = write_timed_model(tmp_path, timed_model())
    config = EngineConfig(model=model, max_model_len=1000, handoff="nixl")
    with pytest.raises(
        ConfigError, match=r"^handoff is nixl, but .* is a timed model.*set handoff to socket"
    ):
        PrefillEngine(config).start()


def test_what_is_handed_off_is_the_prompt_in_pieces_of_any_length() -> None:
    """Two stages' KV, read as their chunks are computed, and continued in other blocks by one stage alone."""
    pipeline = Pipeline(timed_model(), 2)
    whole = TimedStage(timed_model(), range(8))
    kv = whole.make_kv(8, pipeline.kvs[0].block_size)
    prompt, table, other = [*range(40), 7], torch.tensor([3, 1, 0]), torch.tensor([5, 2, 6])
    sent = 0
    for start, length in ((0, 21), (21, 20)):
        chunk = Chunk(start, length, table, start > 0)
        pipeline.wave(prompt[start : start + length], [chunk])
        for end in (start + 3, start + length):
            for each in pipeline.kvs:
                payload = each.export_tokens(table, sent, end)
                assert len(payload) == each.bytes_per_token * (end - sent)
                kv.import_tokens(other, sent, end, each.layers, payload)
            sent = end
    logits = whole.forward(torch.tensor([9]), [Chunk(41, 1, other, True)], kv).logits
    assert logits is not None
    assert int(logits.argmax()) == expected_token([*prompt, 9], VOCABULARY)


def test_kv_of_other_blocks_or_layers_is_refused() -> None:
    pipeline, table = Pipeline(timed_model(), 1), torch.tensor([0, 1, 2])
    pipeline.wave([1] * 40, [Chunk(0, 40, table, True)])
    payload = pipeline.kvs[0].export_tokens(table, 0, 40)
    other = TimedKV(timed_model(), range(8), 8, 32, time.monotonic_ns)
    with pytest.raises(HandoffMismatch, match="needs the same block_size on both sides"):
        other.import_tokens(table, 0, 40, range(8), payload)
    with pytest.raises(HandoffMismatch, match="take 2560 bytes but the payload has 5120"):
        other.import_tokens(table, 0, 40, range(4), payload)
