"""Has transformers' modules compute their elementwise chains in one pass, where there are kernels for it.

A module is taken for what its code is, not for its name or its model: one whose ``forward`` is the code of Llama's, or
of a sibling named here, computes the same, and all others stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn
from transformers.activations import SiLUActivation
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from wavepp_worker.model.elementwise import rms_norm, rotate_and_store, silu_times
from wavepp_worker.model.native_attention import attend_in_place
from wavepp_worker.model.native_library import computes_on
from wavepp_worker.model.paged_kv import PagedCache
from wavepp_worker.model.thin_linear import ThinLinear, most_tokens
from wavepp_worker.model.wave_layout import current_wave

ATTENTIONS = (llama.LlamaAttention, MistralAttention, Qwen2Attention, Qwen3Attention)
_LONGEST_NAME = 60
"""Characters; a longer constant of a function is its description."""


def fuse_elementwise(model: nn.Module) -> None:
    """Norms and gated activations of the model, wherever they are."""
    for module in model.modules():
        if _is(module, llama.LlamaRMSNorm):
            weight: Any = module.weight
            if computes_on(weight.dtype, weight.device):
                module.forward = partial(_norm, module)
        elif _is(module, llama.LlamaMLP) and isinstance(module.act_fn, nn.SiLU | SiLUActivation):
            weight = getattr(module.down_proj, "weight", None)
            if weight is not None and computes_on(weight.dtype, weight.device):
                # The activation and the product with it end torch's matrix products: no pass of their own.
                chained = torch.backends.mkldnn.is_available() and all(
                    _plain(linear) for linear in (module.gate_proj, module.up_proj)
                )
                module.forward = partial(_gated, module, chained)


def fuse_attention(attention: nn.Module, window: int | None) -> None:
    """Rotary embedding and KV write of a layer whose attention reads the pools in place.

    Args:
        window: tokens that a token of this layer sees, itself included; None for all.
    """
    rotary = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    half = getattr(sys.modules[type(attention).__module__], "rotate_half", None)
    if (
        any(_is(attention, known) for known in ATTENTIONS)
        and _same(rotary, llama.apply_rotary_pos_emb)
        and _same(half, llama.rotate_half)
    ):
        attention.forward = partial(_attend, attention, window)


def _norm(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_states, module.weight, module.variance_epsilon)


def _gated(module: Any, chained: bool, x: torch.Tensor) -> torch.Tensor:
    gate, up = module.gate_proj, module.up_proj
    if chained and x.numel() // x.shape[-1] > most_tokens(gate):
        active = torch.ops.mkldnn._linear_pointwise(x, gate.weight, gate.bias, "swish", [], "")
        out = torch.ops.mkldnn._linear_pointwise.binary(x, active, up.weight, up.bias, "mul")
    else:
        out = silu_times(gate(x), up(x))
    result: torch.Tensor = module.down_proj(out)
    return result


def _plain(linear: Any) -> bool:
    """Whether nothing happens in a linear layer but its product: adapters are hooks."""
    return type(linear) in (nn.Linear, ThinLinear) and not linear._forward_hooks


def _attend(
    module: Any,
    window: int | None,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: None = None,
    past_key_values: PagedCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As the module's own, for the current wave; what else transformers hands in has no meaning here."""
    del attention_mask, kwargs
    assert past_key_values is not None, "a stage always has KV"
    tokens = hidden_states.shape[1]
    query, key, value = (
        project(hidden_states).view(tokens, -1, module.head_dim)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    cos, sin = position_embeddings
    wave = current_wave()
    keys, values, at_hand = past_key_values.place(module.layer_idx, wave)
    rotate_and_store(query, key, value, cos[0], sin[0], at_hand.write_slots, keys, values)
    out = attend_in_place(
        query.transpose(0, 1)[None], keys, values, at_hand.spans, wave.block_size, module.scaling, window
    )
    return module.o_proj(out.view(1, tokens, -1)), None


def _is(module: nn.Module, known: type[nn.Module]) -> bool:
    return _same(type(module).forward, known.forward)


def _same(function: Callable[..., Any] | None, known: Callable[..., Any]) -> bool:
    code, other = getattr(function, "__code__", None), known.__code__
    return code is not None and _essence(code) == _essence(other)


def _essence(code: CodeType) -> tuple[Any, ...]:
    constants = [each for each in code.co_consts if not isinstance(each, str) or len(each) < _LONGEST_NAME]
    return code.co_code, code.co_names, code.co_varnames, constants
