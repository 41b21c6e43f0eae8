"""When latents are read as they are, and that this is the same attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from wavepp_worker.model.attention.latent_absorption import (
    LatentSizes,
    absorbed_queries,
    absorbing_pays,
    expansion,
    latent_sizes,
    values_of,
)

DEEPSEEK_V3 = LatentSizes(heads=128, rank=512, rotary=64, plain=128, value=128)


@pytest.mark.parametrize(
    ("starts", "lengths", "pays"),
    [
        ([0], [4096], False),
        ([65536], [128], True),
        ([65536], [512], False),
        ([4096] * 32, [1] * 32, True),
        ([0, 65536], [8192, 16], False),
        ([0, 65536], [64, 16], True),
        ([0], [1], False),
    ],
    ids=["cold", "short suffix", "long suffix", "decode", "most is cold", "little is cold", "one token"],
)
def test_it_pays_where_few_tokens_read_many(starts: list[int], lengths: list[int], pays: bool) -> None:
    assert absorbing_pays(starts, lengths, DEEPSEEK_V3) is pays


def module(heads: int = 4, rank: int = 16, plain: int = 8, value: int = 6, rotary: int = 4) -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(
        num_heads=heads,
        kv_lora_rank=rank,
        qk_rope_head_dim=rotary,
        qk_nope_head_dim=plain,
        v_head_dim=value,
        kv_b_proj=nn.Linear(rank, heads * (plain + value), bias=False),
    )


class Quantised(nn.Linear):
    """Whose weight is no weight until it is used."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.T.to(inputs.dtype)


@pytest.mark.parametrize("quantised", [False, True])
def test_scores_and_values_are_those_of_the_keys_and_values_that_are_made_of_latents(quantised: bool) -> None:
    made = module()
    if quantised:
        made.kv_b_proj = Quantised(16, 56, bias=False).to(torch.float64)
    latents, turned, query = torch.randn(9, 16), torch.randn(9, 4), torch.randn(1, 4, 5, 12)
    with torch.inference_mode():
        expanded = made.kv_b_proj(latents).view(9, 4, 14)
        keys = torch.cat([expanded[..., :8], turned[:, None].expand(9, 4, 4)], -1)
        to_keys, to_values = expansion(made, query)
        absorbed, rotated = absorbed_queries(query, to_keys)
        scores = torch.einsum("thr,kr->htk", absorbed, latents) + torch.einsum("thr,kr->htk", rotated, turned)
        assert torch.allclose(scores, torch.einsum("htd,khd->htk", query[0], keys), atol=1e-5)
        weights = scores.softmax(-1)
        read = torch.einsum("htk,kr->thr", weights, latents)
        want = torch.einsum("htk,khv->thv", weights, expanded[..., 8:])
        assert torch.allclose(values_of(read, to_values)[0], want, atol=1e-5)


def test_sizes_are_those_of_a_module_that_has_all_of_them() -> None:
    made = module()
    assert latent_sizes(made) == LatentSizes(4, 16, 4, 8, 6)
    made.v_head_dim = 7
    assert latent_sizes(made) is None, "its projection makes something else"
    del made.v_head_dim
    assert latent_sizes(made) is None
    assert latent_sizes(None) is None
