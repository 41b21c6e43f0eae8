"""Latent attention without keys and values of heads: what makes them is *absorbed* by queries and by what is read.

A score is the query's part times the key that ``kv_b_proj`` makes of a latent, which is the query taken into the
latents' space times the latent. So each token of a prefix is read as it is cached, for more work per score. Section 2.1
of the DeepSeek-V2 report (arXiv 2405.04434).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class LatentSizes:
    """One layer's latent attention.

    Attributes:
        heads: of queries.
        rank: of a latent.
        rotary: dim of the rotated key, and of that part of a query.
        plain: dim of the other part of a query.
        value: dim of a head's values.
    """

    heads: int
    rank: int
    rotary: int
    plain: int
    value: int


def absorbing_pays(starts: Sequence[int], lengths: Sequence[int], sizes: LatentSizes) -> bool:
    """Whether absorbing is less work for a wave than making keys and values of all that its requests read.

    Args:
        starts: tokens of each request that lie before its chunk.
        lengths: tokens of each chunk.
    """
    of_token = sizes.rank * (sizes.plain + sizes.value)
    more_per_score = 2 * sizes.rank - sizes.plain - sizes.value
    scores = sum(length * (start + (length + 1) // 2) for start, length in zip(starts, lengths, strict=True))
    return sum(starts) * of_token > scores * more_per_score + sum(lengths) * of_token


def latent_sizes(module: Any) -> LatentSizes | None:
    """Of transformers' attention module; None if it is none whose queries and latents can be absorbed."""
    names = ("num_heads", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    found = [size for name in names if isinstance(size := getattr(module, name, None), int) and size > 0]
    if len(found) < len(names) or not hasattr(module, "kv_b_proj"):
        return None
    sizes = LatentSizes(*found)
    made = sizes.heads * (sizes.plain + sizes.value)
    return sizes if getattr(module.kv_b_proj, "out_features", made) == made else None


def expansion(module: Any, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What makes keys ``[heads, dim, rank]`` and values ``[heads, value dim, rank]`` of a latent.

    Args:
        module: transformers' attention module; its ``kv_b_proj`` makes keys and values of latents.
        query: ``[1, heads, tokens, dim]``, of the dtype to make it in.
    """
    projection, rank = module.kv_b_proj, module.kv_lora_rank
    weight = projection.weight
    if weight.dtype != query.dtype:
        # Quantised: only the layer knows what its weights are.
        weight = projection(torch.eye(rank, dtype=query.dtype, device=query.device)).T
    heads, plain = query.shape[1], module.qk_nope_head_dim
    parts = weight.view(heads, -1, rank).split([plain, module.v_head_dim], 1)
    return parts[0], parts[1]


def absorbed_queries(query: torch.Tensor, to_keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries in the latents' space ``[tokens, heads, rank]``, and their rotated part ``[tokens, heads, rotary]``.

    Args:
        query: ``[1, heads, tokens, dim]``, the rotated part last.
        to_keys: as of ``expansion``.
    """
    plain, turned = query[0].transpose(0, 1).split([to_keys.shape[1], query.shape[-1] - to_keys.shape[1]], -1)
    return torch.einsum("thn,hnr->thr", plain, to_keys), turned


def values_of(read: torch.Tensor, to_values: torch.Tensor) -> torch.Tensor:
    """Values ``[1, tokens, heads, value dim]`` of what was read of latents, ``[tokens, heads, rank]``."""
    return torch.einsum("thr,hvr->thv", read, to_values)[None]
