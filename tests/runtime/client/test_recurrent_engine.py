"""Models with recurrent layers on real ranks: snapshots are resumed, offloaded, kept over a restart, and given back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine, PrefillResult
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference


def assert_right(reference: Reference, prompt: list[int], result: PrefillResult) -> None:
    expected = reference.next_logprobs(prompt)
    assert result.first_token == int(expected.argmax())
    for token, logprob in result.top_logprobs:
        assert abs(logprob - float(expected[token])) < 1e-3


def test_snapshots_are_resumed_offloaded_and_found_again_after_a_restart(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Rank 0 has recurrent layers alone, rank 1 attention alone, rank 2 both; devices hold two prompts at most."""
    model = tiny_model("qwen3_next")
    reference, maker = Reference(model), PromptMaker(seed=6)
    config = EngineConfig(
        model=model,
        dtype="float32",
        pp=3,
        partition=(2, 1, 3),
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
    prompts = [maker.tokens(300) for _ in range(3)]
    with PrefillEngine(config) as engine:
        for again in (False, True):
            for prompt in prompts:
                result = engine.prefill(prompt, top_logprobs=5)
                assert result.reused_tokens == (296 if again else 0), (
                    "a snapshot is where the last full block ends"
                )
                assert_right(reference, prompt, result)
        for at in (64, 100, 130, 256):
            # Others leave the prompt there, and resume at the interval before.
            other = prompts[0][:at] + maker.tokens(40)
            result = engine.prefill(other, top_logprobs=5)
            assert result.reused_tokens == at // 64 * 64
            assert_right(reference, other, result)
        engine.audit()
    with PrefillEngine(config) as engine:
        for prompt in prompts:
            result = engine.prefill(prompt, top_logprobs=5)
            assert result.reused_tokens == 296
            assert_right(reference, prompt, result)
        engine.audit()


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("kimi_linear", {"pp": 2, "max_num_batched_tokens": 33, "block_size": 4, "snapshot_interval": 8}),
        pytest.param(
            "qwen3_next",
            {
                "pp": 4,
                "max_num_batched_tokens": 16,
                "block_size": 16,
                "ownership": "none",
                "snapshot_interval": 32,
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
        **values,
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


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"handoff": "socket"}, "handoff is socket, but .* has recurrent layers"),
        ({"snapshot_interval": 50}, "snapshot_interval: 50 is no multiple of block_size=16.* make it 64"),
        ({"state_blocks": 1}, "state_blocks: .*at least 2"),
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
