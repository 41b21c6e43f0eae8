"""Which modules compute what those of Llama do, whatever model they are of."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from wavepp_worker.model.known_code import computes_as, same_code

ATTENTIONS = (llama.LlamaAttention, MistralAttention, Qwen2Attention, Qwen3Attention)


def is_gated_silu(module: Any) -> bool:
    """Whether a module is a feed-forward part like Llama's, with its activation."""
    return computes_as(module, llama.LlamaMLP) and isinstance(module.act_fn, nn.SiLU | SiLUActivation)


def rotates_as_llama(attention: Any) -> bool:
    """Whether a module is attention that is known, and rotates queries and keys as Llama's does."""
    rotary = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    half = getattr(sys.modules[type(attention).__module__], "rotate_half", None)
    return (
        any(computes_as(attention, each) for each in ATTENTIONS)
        and same_code(rotary, llama.apply_rotary_pos_emb)
        and same_code(half, llama.rotate_half)
    )


def projected(
    attention: Any, asking: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of attention that is known, not rotated yet, each ``[tokens, heads, dim]``.

    Args:
        asking: ``[1, tokens, hidden]`` of those that have queries.
        hidden: likewise, of those that have keys and values.
    """
    query, key, value = (
        project(of)[0].unflatten(-1, (-1, attention.head_dim))
        for project, of in (
            (attention.q_proj, asking),
            (attention.k_proj, hidden),
            (attention.v_proj, hidden),
        )
    )
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    return query, key, value
