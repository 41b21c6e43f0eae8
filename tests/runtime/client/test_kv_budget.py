"""Pools of an engine's ranks from the memory that its devices have left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.weight_sizes import weight_sizes
from wavepp_worker.model.inspection import inspect_model
from wavepp_worker.model.kv.layer_cache import state_bytes, token_bytes
from wavepp_worker.model.model_shape import ModelShape, read_model_shape
from wavepp_worker.runtime.client import engine, kv_budget
from wavepp_worker.runtime.client.kv_budget import engine_shares, with_pools
from wavepp_worker.runtime.client.kv_pools import state_blocks
from wavepp_worker.runtime.protocol.engine_config import EngineConfig

from tests.support.model_files import without_layer_types

GIB = 1 << 30


def test_ranks_of_a_host_share_its_memory_however_many_they_are(tiny_llama: Path) -> None:
    shape = read_model_shape(tiny_llama)
    for pp in (1, 2, 3):
        config = EngineConfig(
            model=tiny_llama, pp=pp, dtype="float32", kv_memory_fraction=0.25, max_model_len=64
        )
        pooled = with_pools(config, shape, free=lambda device: 4 * GIB)
        tokens = pooled.kv_tokens
        assert isinstance(tokens, int)
        taken = tokens * shape.kv_numbers * 6 * 4
        room = sum(share.room + share.weights for share in engine_shares(config, shape))
        assert taken == pytest.approx((4 * GIB - room) / 4, rel=1e-4)
        assert pooled.kv_memory_fraction is None


def test_states_of_recurrent_layers_are_counted_with_the_tokens(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """What the ranks then take is what was planned, in sum; however they share the layers."""
    model, running, interval = tiny_model("qwen3_next"), 8, 32
    config = EngineConfig(
        model=model,
        pp=2,
        partition=(2, 4),
        dtype="float32",
        kv_memory_fraction=0.25,
        max_model_len=64,
        max_num_seqs=running,
        snapshot_interval=interval,
    )
    for states in (None, 50):
        asked = config.model_copy(update={"state_blocks": states})
        shape = read_model_shape(model)
        pooled = with_pools(asked, shape, free=lambda device: GIB + GIB // 4)
        tokens = pooled.kv_tokens
        assert isinstance(tokens, int)
        shares = engine_shares(asked, shape)
        kept = [running, running] if states is None else [states, states]
        parts = [shape.caches[:2], shape.caches[2:]]
        beside = [count * state_bytes(part, "float32") for count, part in zip(kept, parts, strict=True)]
        assert [share.beside for share in shares] == beside
        tokens_and_snapshots = sum(
            tokens * token_bytes(part, "float32")
            + (tokens // interval * state_bytes(part, "float32") if states is None else 0)
            for part in parts
        )
        left = GIB + GIB // 4 - sum(share.room + share.weights + share.beside for share in shares)
        assert tokens_and_snapshots == pytest.approx(left / 4, rel=1e-2)
        counts = [device for device, _, _ in state_blocks(pooled)]
        assert counts == ([running + tokens // interval] * 2 if states is None else [states] * 2)


def test_where_layers_go_to_is_not_known_ranks_are_taken_to_have_what_keeps_most(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_budget, "gpu_count", lambda: 2)
    model = tiny_model("qwen3_next")
    shape = read_model_shape(model)
    config = EngineConfig(model=model, pp=2, device="cuda", dtype="bfloat16", max_num_seqs=8)
    # Each may have four of two times two recurrent layers and one with attention: three of those, or two of these.
    for share in engine_shares(config, shape):
        assert share.beside == 8 * 3 * state_bytes(shape.caches[:1], "bfloat16")
        snapshots = -(-3 * state_bytes(shape.caches[:1], "bfloat16") // 1024)
        assert share.token_bytes == token_bytes(shape.caches, "bfloat16") + snapshots


def test_ranks_with_gpus_of_their_own_have_what_each_has_left(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_budget, "gpu_count", lambda: 2)
    config = EngineConfig(model=tiny_llama, pp=2, device="cuda", kv_memory_fraction=0.9, max_model_len=64)
    free = {"cuda:0": 4 * GIB, "cuda:1": 6 * GIB}
    first, second = with_pools(config, read_model_shape(tiny_llama), free=free.__getitem__).kv_tokens  # type: ignore[misc]
    assert 0 < first < second
    # Four ranks are two on each.
    four = with_pools(
        config.model_copy(update={"pp": 4}), read_model_shape(tiny_llama), free=free.__getitem__
    )
    assert isinstance(four.kv_tokens, tuple)
    assert four.kv_tokens[0] == four.kv_tokens[2] < four.kv_tokens[1] == four.kv_tokens[3]


def test_tokens_that_are_asked_for_stay_and_have_to_fit(tiny_llama: Path) -> None:
    shape = read_model_shape(tiny_llama)
    config = EngineConfig(model=tiny_llama, kv_tokens=8192)
    assert with_pools(config, shape, free=lambda device: GIB) == config
    with pytest.raises(ConfigError, match=r"^kv_tokens: asks for "):
        with_pools(config, shape, free=lambda device: weight_sizes(tiny_llama).layers)
    tiers = config.model_copy(update={"host_kv_tokens": 1 << 40})
    with pytest.raises(ConfigError, match=r"^kv_tokens: asks for .* and with tiers in memory"):
        with_pools(tiers, shape, free=lambda device: GIB)


def test_a_fraction_that_holds_no_request_is_refused(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, kv_memory_fraction=1e-6)
    with pytest.raises(
        ConfigError, match=r"^kv_memory_fraction: 1e-06 of .*, too small for one request of 8192 tokens; "
    ):
        with_pools(config, read_model_shape(tiny_llama), free=lambda device: GIB)


def test_more_ranks_than_layers_are_not_taken_for_a_want_of_memory(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, pp=99, kv_memory_fraction=0.1)
    with pytest.raises(ConfigError, match=r"^pp: 99 stages cannot share 6 layers"):
        with_pools(config, read_model_shape(tiny_llama), free=lambda device: GIB)


def test_what_nobody_can_tell_is_left_to_the_default(tmp_path: Path, tiny_llama: Path) -> None:
    config = EngineConfig(model=tmp_path / "not made yet", kv_memory_fraction=0.1)
    assert with_pools(config, read_model_shape(tiny_llama)).kv_memory_fraction is None


def test_windows_take_what_their_pools_and_tiers_do_wherever_layers_go_to(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("gpt_oss")
    shape = read_model_shape(model)
    config = EngineConfig(
        model=model,
        pp=3,
        dtype="float32",
        kv_tokens=8000,
        host_kv_tokens=4000,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        handoff="socket",
    )

    def taken(layers: range, tokens: int, tier: int) -> int:
        said = inspect_model(model, partition=(layers.start, len(layers), 6 - layers.stop), pp=3).stages[1]
        assert said.cache_bytes is not None
        pool, below = said.pool_bytes(tokens, 16, 2, 64), said.tier_bytes(tier, 16)
        assert pool is not None
        assert below is not None
        assert pool < tokens * said.cache_bytes
        return pool + below

    for share in engine_shares(config.model_copy(update={"partition": (2, 2, 2)}), shape):
        assert 8000 * share.token_bytes + share.beside == taken(range(2, 4), 8000, 4000)
    # Three layers each at most, of which one or two have a window.
    monkeypatch.setattr(kv_budget, "gpu_count", lambda: 3)
    on_gpus = engine_shares(config.model_copy(update={"device": "cuda", "dtype": "float32"}), shape)
    for share in on_gpus:
        most = max(taken(range(first, first + 3), 8000, 0) for first in (1, 2))
        assert 8000 * share.token_bytes + share.beside >= most


def test_an_engine_knows_from_transformers_what_a_file_leaves_out(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 2's older files do not say which layers slide."""
    model = without_layer_types(tiny_model("gemma2"), tmp_path / "older")
    counted: list[ModelShape] = []

    def noted(config: EngineConfig, shape: ModelShape) -> EngineConfig:
        counted.append(shape)
        return with_pools(config, shape)

    monkeypatch.setattr(engine, "with_pools", noted)
    engine.PrefillEngine(EngineConfig(model=model, kv_memory_fraction=0.01, max_model_len=64))
    assert counted[0].caches == read_model_shape(tiny_model("gemma2")).caches
