"""Has transformers' modules compute their elementwise chains in one pass, where there are kernels for it.

One whose ``forward`` is the code of Llama's, or of a sibling (``known_modules``), computes the same; others stay as
they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from wavepp_worker.model.cpu.elementwise import rms_norm, rotate, rotate_and_store, silu_times
from wavepp_worker.model.cpu.native_attention import attend_in_place
from wavepp_worker.model.cpu.native_library import computes_on, multiplies_bfloat16
from wavepp_worker.model.cpu.native_linear import (
    NativeLinear,
    fewest_tokens,
    gated_pair,
    most_tokens,
    takes_many,
)
from wavepp_worker.model.known_code import computes_as
from wavepp_worker.model.known_modules import is_gated_silu, projected, rotates_as_llama
from wavepp_worker.model.kv.paged_kv import PagedCache
from wavepp_worker.model.kv.wave_layout import current_wave
from wavepp_worker.model.lora_branches import has_branch, hooks_are_branches


def fuse_elementwise(model: nn.Module) -> None:
    """Norms and gated activations of the model, wherever they are."""
    for module in model.modules():
        if computes_as(module, LlamaRMSNorm):
            weight: Any = module.weight
            if computes_on(weight.dtype, weight.device):
                module.forward = partial(_norm, module)
        elif is_gated_silu(module):
            down: Any = module.down_proj
            weight = next(down.parameters(), None)
            if weight is not None and computes_on(weight.dtype, weight.device):
                pair: list[Any] = [module.gate_proj, module.up_proj]
                known = all(
                    (type(each) is nn.Linear or isinstance(each, NativeLinear)) and hooks_are_branches(each)
                    for each in pair
                )
                branched = any(map(has_branch, pair))
                module.forward = partial(_gated, module, known, branched)


def fuse_attention(attention: nn.Module, window: int | None, *, trimmed: bool = False) -> bool:
    """Rotary embedding and KV write of a layer whose attention reads the pools in place.

    Args:
        window: tokens that a token of this layer sees, itself included; None for all.
        trimmed: it is that of a last layer that computes for wanted tokens only (``last_layer``).

    Returns:
        Whether it is one that is known.
    """
    known = rotates_as_llama(attention)
    if known:
        attention.forward = partial(_attend, attention, window, trimmed)
    return known


def _norm(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_states, module.weight, module.variance_epsilon)


def _gated(module: Any, known: bool, branched: bool, x: torch.Tensor) -> torch.Tensor:
    """As the module's own.

    Args:
        known: gate and up projection are plain products, to which adapters alone may add.
        branched: to one of them an adapter may.
    """
    gate, up = module.gate_proj, module.up_proj
    tokens = x.numel() // x.shape[-1]
    plain = known and not (branched and current_wave().adapted)
    # The activation and the product with it end the matrix products: no pass of their own.
    alike = plain and _takes(gate, x) and _takes(up, x) and gate.packed == up.packed
    if alike and tokens >= fewest_tokens(gate):
        out = gated_pair(gate, up, x)
    elif plain and tokens > most_tokens(gate) and _torch_chains(gate):
        active = torch.ops.mkldnn._linear_pointwise(x, gate.weight, gate.bias, "swish", [], "")
        out = torch.ops.mkldnn._linear_pointwise.binary(x, active, up.weight, up.bias, "mul")
    else:
        out = silu_times(gate(x), up(x))
    result: torch.Tensor = module.down_proj(out)
    return result


def _takes(linear: Any, x: torch.Tensor) -> bool:
    if not takes_many(linear):
        return False
    return x.is_cpu and x.dtype is linear.stored.dtype and x.shape[-1] == linear.in_features


def _torch_chains(linear: Any) -> bool:
    narrow = next(linear.parameters()).dtype is torch.bfloat16 and multiplies_bfloat16()
    return narrow and torch.backends.mkldnn.is_available()


def _attend(
    module: Any,
    window: int | None,
    trimmed: bool,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: None = None,
    past_key_values: PagedCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As the module's own, for the current wave; what else transformers hands in has no meaning here."""
    del attention_mask, kwargs
    assert past_key_values is not None, "a stage always has KV"
    wave = current_wave()
    keys, values, at_hand = past_key_values.place(module.layer_idx, wave)
    trims = trimmed and wave.trimmed
    asking = hidden_states[:, wave.wanted] if trims else hidden_states
    query, key, value = projected(module, asking, hidden_states)
    (cos,), (sin,) = position_embeddings
    slots, spans = at_hand.write_slots, at_hand.spans
    if trims:
        rotate_and_store(key[:, :0], key, value, cos, sin, slots, keys, values)
        if not wave.wanting:
            return asking, None
        rotate(query, cos[wave.wanted], sin[wave.wanted])
        spans = at_hand.last_tokens(wave.wanting)
    else:
        rotate_and_store(query, key, value, cos, sin, slots, keys, values)
    out = attend_in_place(
        query.transpose(0, 1)[None], keys, values, spans, wave.block_size, module.scaling, window
    )
    return module.o_proj(out.view(1, len(query), -1)), None
