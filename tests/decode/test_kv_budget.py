"""The pool of a decode engine from the memory that its device has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.kv_budget import decode_share, with_pool
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import read_model_shape

GIB = 1 << 30


def test_a_fraction_of_what_is_left_beside_all_who_share(tiny_llama: Path) -> None:
    shape = read_model_shape(tiny_llama)
    config = DecodeConfig(model=tiny_llama, kv_memory_fraction=0.5, max_model_len=64)
    alone = with_pool(config, shape, free=lambda device: 4 * GIB).kv_tokens
    [share] = decode_share(config, shape)
    assert alone == int(0.5 * (4 * GIB - share.weights - share.room) / share.token_bytes)
    together = with_pool(config, shape, [share], free=lambda device: 4 * GIB).kv_tokens
    assert together is not None
    assert together < alone / 2
    fixed = DecodeConfig(model=tiny_llama, kv_tokens=8192)
    assert with_pool(fixed, shape, free=lambda device: GIB) == fixed
    with pytest.raises(ConfigError, match=r"^kv_tokens: asks for "):
        with_pool(DecodeConfig(model=tiny_llama, kv_tokens=1 << 40), shape, free=lambda device: GIB)
    assert with_pool(config.model_copy(update={"model": tiny_llama / "no"}), shape).kv_memory_fraction is None
