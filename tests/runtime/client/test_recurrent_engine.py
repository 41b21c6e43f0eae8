"""Models with recurrent layers on real ranks: snapshots are resumed, offloaded, kept over a restart, and given back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine, PrefillResult, token_ids
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.decode_bench import Collector
from tests.support.handoff_sides import room_of
from tests.support.prompts import PromptMaker
from tests.support.reference import Reference, assert_right


def test_snapshots_are_resumed_offloaded_and_found_again_after_a_restart(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rank 0 has recurrent layers alone, rank 1 both kinds, rank 2 attention; two prompts fill their devices.

    Rank 0 finds where prompts part all the same, and the engine is told what all can reuse, also after a restart.
    """
    model = tiny_model("qwen3_next")
    reference, maker = Reference(model), PromptMaker(seed=6)
    config = EngineConfig(
        model=model,
        dtype="float32",
        pp=3,
        partition=(2, 3, 1),
        max_num_batched_tokens=50,
        block_size=8,
        kv_tokens=400,
        max_model_len=320,
        snapshot_interval=64,
        state_blocks=8,
        max_num_seqs=2,
        host_kv_tokens=(200, 400, 200),
        disk_kv_tokens=1600,
        disk_path=tmp_path / "kv",
    )
    prompts = [maker.tokens(length) for length in (300, 304, 300)]
    told: list[IndexDelta] = []
    with PrefillEngine(config, on_index=told.append) as engine:
        for again in (False, True):
            for prompt in prompts:
                result = engine.prefill(prompt, top_logprobs=5)
                assert result.reused_tokens == (296 if again else 0), (
                    "a snapshot is where the last block ends that can be reused"
                )
                assert_right(reference, prompt, result)
        for at, again in ((64, False), (100, False), (100, True), (256, False)):
            # Others leave the prompt there: the first resumes at the interval before, and leaves a snapshot.
            other = prompts[0][:at] + maker.tokens(40)
            result = engine.prefill(other, top_logprobs=5)
            assert result.reused_tokens == (at // 8 * 8 if again else at // 64 * 64)
            assert_right(reference, other, result)
        engine.audit()
    stored = [delta for delta in told if delta.stored]
    assert sum(len(delta.stored) for delta in stored) >= 3 * 37
    assert stored[0].tokens[:4] == token_ids.pack(prompts[0][:1])
    told.clear()
    with PrefillEngine(config, on_index=told.append) as engine:
        assert sum(len(delta.stored) for delta in told) >= 3 * 37, "they are on disk"
        for prompt in prompts:
            result = engine.prefill(prompt, top_logprobs=5)
            assert result.reused_tokens == 296
            assert_right(reference, prompt, result)
        engine.audit()


@pytest.mark.parametrize(
    ("family", "values"),
    [
        (
            "kimi_linear",
            {
                "pp": 2,
                "partition": (1, 5),
                "max_num_batched_tokens": 33,
                "block_size": 4,
                "snapshot_interval": 8,
                "handoff": "socket",
            },
        ),
        pytest.param(
            "qwen3_next",
            {
                "pp": 4,
                "max_num_batched_tokens": 16,
                "block_size": 16,
                "ownership": "none",
                "snapshot_interval": 32,
                "handoff": "auto",
            },
            marks=pytest.mark.soak,
        ),
    ],
)
def test_packed_prompts_aborts_and_shared_prefixes_are_right_and_leak_nothing(
    family: str, values: dict[str, object], tiny_model: Callable[[str], Path]
) -> None:
    model = tiny_model(family)
    reference, maker, draw = Reference(model), PromptMaker(seed=3), random.Random(3)
    config = EngineConfig(
        model=model,
        dtype="float32",
        kv_tokens=1200,
        max_model_len=300,
        state_blocks=40,
        max_num_seqs=6,
        **values,  # type: ignore[arg-type]
    )
    shared = maker.tokens(120)
    prompts = [shared[: draw.randrange(1, 120)] + maker.tokens(draw.randrange(1, 60)) for _ in range(16)]
    with PrefillEngine(config) as engine:
        for turn in range(2):
            names = [f"{turn}-{number}" for number in range(len(prompts))]
            futures = [
                engine.submit(PrefillRequest.of(name, prompt))
                for name, prompt in zip(names, prompts, strict=True)
            ]
            aborted = set(draw.sample(range(len(prompts)), 5)) if not turn else set()
            for number in aborted:
                engine.abort(names[number])
            reused = 0
            for number, (future, prompt) in enumerate(zip(futures, prompts, strict=True)):
                try:
                    result = future.result(60)
                except WaveppError:
                    assert number in aborted
                    continue
                assert_right(reference, prompt, result)
                reused += result.reused_tokens
            engine.audit()
        assert reused > 500
        decode = DecodeConfig(
            model=model, dtype="float32", kv_tokens=1000, max_model_len=300, max_num_seqs=3, block_size=5
        )
        with DecodeEngine(decode) as continuing:
            check_text(engine, continuing, reference, prompts[:6])
            continuing.audit()
        engine.audit()


def check_text(
    engine: PrefillEngine, continuing: DecodeEngine, reference: Reference, prompts: list[list[int]]
) -> None:
    """Prompts are computed, and continued elsewhere or, every third, where they run whole: as ``generate`` says."""
    server = BootstrapServer("127.0.0.1", 0, on_cancel=engine.withdraw)
    outputs = [Collector() for _ in prompts]
    try:
        for room, (prompt, collector) in enumerate(zip(prompts, outputs, strict=True)):
            handoff = room_of(server, room) if room % 3 else None
            tokens = token_ids.pack(prompt)
            continuing.submit(
                DecodeRequest(request_id=f"d{room}", tokens=tokens, max_tokens=12, handoff=handoff), collector
            )
            if handoff is not None:
                hand_over(engine, server, room, prompt)
        for prompt, collector in zip(prompts, outputs, strict=True):
            assert collector.last.error is None
            assert collector.ids == reference.generate(prompt, 12)
    finally:
        server.close()


def hand_over(engine: PrefillEngine, server: BootstrapServer, room: int, prompt: list[int]) -> None:
    admitted = threading.Event()
    future = engine.submit(PrefillRequest.of(f"h{room}", prompt, handoff=True), admitted.set)
    assert admitted.wait(30)
    server.register(room, engine.offer(f"h{room}"))

    def ended(done: Future[PrefillResult]) -> None:
        result = done.result()
        server.finish(room, FirstToken(first=result.first, reused_tokens=result.reused_tokens))

    future.add_done_callback(ended)


@pytest.mark.parametrize(
    "values",
    [{"max_num_seqs": 1, "kv_tokens": 1600}, {"state_blocks": 3, "kv_tokens": 6000, "host_kv_tokens": 1000}],
    ids=["a small pool", "the fewest states"],
)
def test_the_fewest_states_are_enough_to_resume(
    values: dict[str, int], tiny_model: Callable[[str], Path]
) -> None:
    prompt = PromptMaker(seed=4).tokens(403)
    config = EngineConfig(
        model=tiny_model("qwen3_next"),
        dtype="float32",
        pp=2,
        block_size=8,
        max_num_batched_tokens=64,
        max_model_len=600,
        **values,  # type: ignore[arg-type]
    )
    with PrefillEngine(config) as engine:
        assert [engine.prefill(prompt).reused_tokens for _ in range(3)] == [0, 400, 400]
        longer = prompt + PromptMaker(seed=5).tokens(80)
        assert engine.prefill(longer).reused_tokens == 400
        at_once = [engine.submit(longer[::-1]) for _ in range(6)]
        assert sum(each.result(60).reused_tokens for each in at_once) > 0
        engine.audit()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"order_max_passed_tokens": 10**400}, "order_max_passed_tokens: .*1152921504606846976"),
        ({"max_num_seqs": 2**70}, "max_num_seqs: .*1048576"),
        ({"snapshot_interval": 50}, "snapshot_interval: 50 is no multiple of block_size=16.* make it 64"),
        ({"state_blocks": 2}, "state_blocks: .*at least 3"),
    ],
)
def test_what_cannot_work_is_refused_at_start(
    values: dict[str, object], says: str, tiny_model: Callable[[str], Path]
) -> None:
    with (
        pytest.raises(ConfigError, match=says),
        PrefillEngine(EngineConfig(model=tiny_model("qwen3_next"), max_model_len=300, **values)),
    ):
        pass
