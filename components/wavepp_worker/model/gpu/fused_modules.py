"""Has transformers' modules compute elementwise chains in fewer kernels on a GPU: torch's and FlashInfer's.

Each kernel is a launch, which takes the host some microseconds, and reads and writes all of a wave's activations: a
norm is six of them or more as transformers has it, a rotary embedding ten. As in ``cpu/fused_modules``, one whose
``forward`` is known computes the same, and all others stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.attention.interface import paged_attention
from wavepp_worker.model.gpu.flashinfer_rotary import FlashInferRotary
from wavepp_worker.model.known_code import computes_as
from wavepp_worker.model.known_modules import is_gated_silu, projected, rotates_as_llama
from wavepp_worker.model.kv.paged_kv import PagedCache


def is_gpu(device: torch.device) -> bool:
    """Whether each operation there is a launch, of which fewer are better."""
    return device.type == "cuda"


@dataclass(frozen=True)
class Fused:
    """What was changed.

    Attributes:
        norms: modules whose norm is torch's kernel.
        gates: feed-forward parts whose activation is computed in place.
        rotated: layers whose queries and keys FlashInfer rotates.
        attending: layers whose queries and keys somebody rotates.
    """

    norms: int
    gates: int
    rotated: int
    attending: int

    def __str__(self) -> str:
        others = "" if self.rotated == self.attending else ", by transformers in the others"
        return (
            f"torch's rms_norm in {self.norms} modules, gated activations in place in {self.gates}, queries and keys "
            f"rotated by FlashInfer in {self.rotated} of {self.attending} layers{others}"
        )


def fuse_on_gpu(model: Any, windows: Mapping[int, int | None], rotary: FlashInferRotary | None) -> Fused:
    """Norms and gated activations, wherever they are, and the rotary embeddings of some layers.

    Args:
        windows: of layers whose attention is paged, tokens that a token sees, itself included; None for all.
        rotary: what rotates; None where there is nothing.
    """
    norms = gates = rotated = 0
    for module in model.modules():
        # One in another dtype promotes what it multiplies.
        if computes_as(module, LlamaRMSNorm) and module.weight.dtype is model.dtype:
            module.forward = partial(_norm, module)
            norms += 1
        elif is_gated_silu(module):
            module.forward = partial(_gated, module)
            gates += 1
    for layer, window in windows.items():
        attention: Any = getattr(model.base_model.layers[layer], "self_attn", None)
        if rotary is None or attention is None or not rotates_as_llama(attention):
            continue
        dim = attention.head_dim
        queries, keys = (each.out_features // dim for each in (attention.q_proj, attention.k_proj))
        if rotary.takes(Heads(queries, keys, dim)):
            attention.forward = partial(_attend, attention, window, rotary)
            rotated += 1
    return Fused(norms, gates, rotated, len(windows))


def _norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


def _gated(module: Any, x: torch.Tensor) -> torch.Tensor:
    """As the module's own, without a copy of what is widest."""
    gate = F.silu(module.gate_proj(x), inplace=True)
    result: torch.Tensor = module.down_proj(gate.mul_(module.up_proj(x)))
    return result


def _attend(
    module: Any,
    window: int | None,
    rotary: FlashInferRotary,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: None = None,
    past_key_values: PagedCache | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As the module's own; what else transformers hands in has no meaning here."""
    del attention_mask, kwargs
    assert past_key_values is not None, "a stage always has KV"
    query, key, value = projected(module, hidden_states, hidden_states)
    rotary.rotate(query, key, *position_embeddings)
    query, key, value = (each.transpose(0, 1)[None] for each in (query, key, value))
    keys, values = past_key_values.update(key, value, module.layer_idx)
    out, _ = paged_attention(module, query, keys, values, None, scaling=module.scaling, sliding_window=window)
    return module.o_proj(out.flatten(2)), None
