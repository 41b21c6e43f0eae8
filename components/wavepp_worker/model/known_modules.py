"""Which modules compute what those of Llama do, whatever model they are of."""

from __future__ import annotations

import sys
from typing import Any

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
