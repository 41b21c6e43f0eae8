"""Requests through LoRA adapters over real ranks: each its own numbers, and KV that nobody else reuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import ConfigError, InvalidRequest
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.runtime.client.kv_budget import engine_shares
from wavepp_worker.runtime.client.start_checks import check_start
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.lora_adapters import make_adapter, merge
from tests.support.reference import Reference

NAMES = ("", "one", "two")


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(base / name, tiny_llama, seed=seed) for seed, name in enumerate(NAMES[1:])}


@pytest.fixture(scope="module")
def config(tiny_llama: Path, adapters: dict[str, Path]) -> EngineConfig:
    return EngineConfig(
        model=tiny_llama,
        lora_modules=tuple(f"{name}={path}" for name, path in adapters.items()),
        pp=3,
        partition=(1, 3, 2),
        dtype="float32",
        block_size=4,
        kv_tokens=1024,
        max_model_len=128,
        max_num_batched_tokens=32,
    )


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> Iterator[PrefillEngine]:
    with PrefillEngine(config) as engine:
        yield engine


def test_mixed_requests_equal_merged_models_cold_and_reused(
    engine: PrefillEngine, tiny_llama: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    plain = {name: Reference(merge(tmp_path / name, tiny_llama, path)) for name, path in adapters.items()}
    plain[""] = Reference(tiny_llama)
    prompts = [[n * 7 % 290 for n in range(start, start + 41)] for start in range(4)]
    for reused in (0, 40):
        asked = [
            (name, prompt, engine.submit(PrefillRequest.of(f"{reused}-{name}-{n}", prompt, lora=name)))
            for n, prompt in enumerate(prompts)
            for name in NAMES
        ]
        for name, prompt, future in asked:
            result, expected = future.result(60), plain[name].next_logprobs(prompt)
            assert result.first_token == int(expected.argmax())
            assert result.logprob == pytest.approx(float(expected.max()), abs=1e-3)
            # The same tokens are in the cache three times, and each finds its own alone.
            assert result.reused_tokens == reused
    known = PrefillRequest.of("known", prompts[0])
    assert [engine.reusable_tokens(known.tokens, lora=name) for name in NAMES] == [40] * 3
    engine.audit()


def test_who_is_not_loaded_is_refused(engine: PrefillEngine) -> None:
    with pytest.raises(
        InvalidRequest, match="LoRA adapter 'three' is not loaded; those that are: one, two, or"
    ):
        engine.submit(PrefillRequest.of("r", [1, 2], lora="three"))


def test_adapters_are_checked_before_the_start_and_count_as_weights(config: EngineConfig) -> None:
    shape = read_model_shape(config.model)
    check_start(config, shape)
    without = config.model_copy(update={"lora_modules": ()})
    more = [
        a.weights - b.weights
        for a, b in zip(*(engine_shares(c, shape) for c in (config, without)), strict=True)
    ]
    # Of rank 4, in seven linear layers of six layers: what they take in, and what they give.
    in_a_layer = 4 * (4 * 64 + 64 + 32 + 32 + 64 + 2 * (64 + 112) + 112 + 64)
    assert more == [2 * layers * in_a_layer * 4 for layers in (1, 3, 2)]
    wrong = config.model_copy(update={"lora_modules": (f"a={config.model}",)})
    with pytest.raises(ConfigError, match=r"^lora_modules: a is .* has no adapter_config\.json"):
        check_start(wrong, shape)
