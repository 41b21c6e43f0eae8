"""KV in FP8: what is read is the same however a prompt is cut, moved or handed over, and near what was computed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.inspection import inspect_model
from wavepp_worker.model.kv.layer_cache import INDEXED, CachedTensor, LayerCache, in_fp8, token_bytes
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.reference import Reference

TABLE = torch.tensor([5, 1, 4, 2, 7, 0])
LENGTH, BLOCK = 23, 4


def logits(stages: list[Any], kvs: list[Any], cuts: tuple[int, ...]) -> torch.Tensor:
    """Of the last token of a prompt that is run in chunks which end at ``cuts``."""
    tokens = torch.arange(LENGTH) * 11 % 290
    for start, end in pairwise((0, *cuts, LENGTH)):
        data: Any = tokens[start:end]
        for stage, kv in zip(stages, kvs, strict=True):
            output = stage.forward(data, [Chunk(start, end - start, TABLE, end == LENGTH)], kv)
            data = output.activations
    return output.logits[0]


@pytest.mark.parametrize(
    ("family", "most"),
    # Where there are experts, a token may be sent to others.
    [("llama", 0.25), ("gemma3_text", 0.25), ("gpt_oss", 1.0), ("qwen3_moe", 1.0), ("deepseek_v3", 1.0)],
)
def test_chunks_change_nothing_and_the_error_is_small(
    family: str, most: float, tiny_model: Callable[[str], Path]
) -> None:
    model = tiny_model(family)
    stages = [
        load_stage(model, layers, torch.float32, "cpu", (), "fp8") for layers in (range(2), range(2, 6))
    ]
    found = [
        logits(stages, [stage.make_kv(8, BLOCK) for stage in stages], cuts) for cuts in ((), (9, 10), (22,))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=2e-3, rtol=1e-3)
    expected = Reference(model).next_logprobs(torch.arange(LENGTH) * 11 % 290)
    error = (found[0].log_softmax(-1) - expected).abs()
    # Numbers of four significant bits; weights as random as these are not made to be robust.
    assert 1e-4 < error.mean() < most


def test_bytes_are_those_that_were_said_and_travel_as_they_are(tiny_model: Callable[[str], Path]) -> None:
    for family in ("llama", "deepseek_v3"):
        model = tiny_model(family)
        said = inspect_model(model, 2, (2, 4), "float32", "fp8").stages
        stages = [
            load_stage(model, layers, torch.float32, "cpu", (), "fp8") for layers in (range(2), range(2, 6))
        ]
        kvs, others = ([stage.make_kv(8, BLOCK) for stage in stages] for _ in range(2))
        assert [kv.bytes_per_token for kv in kvs] == [stage.cache_bytes for stage in said]
        kept = read_model_shape(model).caches_in("fp8")
        assert sum(kv.bytes_per_token for kv in kvs) == token_bytes(kept, "float32")
        logits(stages, kvs, (9,))
        for kv, other in zip(kvs, others, strict=True):
            other.import_tokens(TABLE, 0, 9, kv.layers, kv.export_tokens(TABLE, 0, 9))
            blocks = TABLE[2:]
            other.import_blocks(blocks, kv.export_blocks(blocks))
            for layer in kv.layers:
                for own, copied in zip(kv.pools(layer), other.pools(layer), strict=True):
                    assert torch.equal(own, copied)
                    assert own.dtype == torch.uint8
    # Two heads of 16, keys and values, a scale for each.
    shape = read_model_shape(tiny_model("llama"))
    assert token_bytes(shape.caches_in("fp8")[:1], "bfloat16") == 2 * 2 * (16 + 4)
    assert token_bytes(shape.caches_in("auto")[:1], "bfloat16") == 2 * 2 * 16 * 2


def test_states_stay_and_indexed_layers_are_refused() -> None:
    state = LayerCache("linear_attention", "recurrent", (CachedTensor("state", (2, 4, 4), "float32"),))
    assert in_fp8([state]) == (state,)
    with pytest.raises(
        ConfigError, match=r"^kv_dtype: fp8 is not supported for layers of indexed_latent_attention"
    ):
        in_fp8([LayerCache(INDEXED, "full", (CachedTensor("latent", (1, 8)),))])
