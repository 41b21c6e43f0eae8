"""Decoder layers like Llama's take few tokens in one call: the kernel of ``decoder_layer.cpp``.

A layer is a dozen operations. Of few tokens each takes some microseconds, and Python as long again to go on to the
next: in a decode step, or of a short prompt, half of the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from wavepp_worker.model.fused_layers import is_gated_silu
from wavepp_worker.model.known_code import computes_as
from wavepp_worker.model.last_layer import knows_how_to_trim
from wavepp_worker.model.native_library import kernel
from wavepp_worker.model.paged_kv import PagedCache
from wavepp_worker.model.thin_linear import ThinLinear, most_tokens
from wavepp_worker.model.wave_layout import current_wave

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (_ADDRESS, _NUMBER, *(_ADDRESS,) * 9, _NUMBER, _NUMBER, _ADDRESS, _NUMBER, _NUMBER)


class _Linear(ctypes.Structure):
    _fields_ = (("weight", _ADDRESS), ("bias", _ADDRESS), ("inputs", _NUMBER), ("outputs", _NUMBER))

    @classmethod
    def of(cls, layer: nn.Linear) -> _Linear:
        return cls(layer.weight.data_ptr(), _address(layer.bias), layer.in_features, layer.out_features)


class _DecoderLayer(ctypes.Structure):
    """As of ``decoder_layer.cpp``, which has the same fields."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, _NUMBER) for name in ("dim", "window")),
        *((name, ctypes.c_double) for name in ("norm_eps", "head_norm_eps", "scale")),
    )


def take_few_tokens_at_once(layer: nn.Module, window: int | None, *, trims: bool) -> None:
    """Have a decoder layer compute few tokens in one call, if the kernel knows all its parts.

    Args:
        layer: has an attention that is fused (``fuse_attention``).
        window: tokens that one of its tokens sees, itself included; None for all.
        trims: it is a last layer that answers for wanted tokens only (``last_layer``).
    """
    parts: Any = layer
    if not knows_how_to_trim(layer) or not is_gated_silu(parts.mlp):
        return
    norms, linears = _norms(parts), _linears(parts)
    dtype = norms[0].weight.dtype
    if (
        all(computes_as(norm, LlamaRMSNorm) for norm in norms)
        # Adapters are hooks.
        and all(type(each) is ThinLinear and not each._forward_hooks for each in linears)
        and all(each.weight.dtype is dtype for each in (*linears, *norms))
    ):
        layer.forward = _NativeLayer(parts, norms, linears, window, trims=trims).forward


def _norms(layer: Any) -> list[Any]:
    """In the order of the kernel; those of heads last, if there are such."""
    of_heads = (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return [
        layer.input_layernorm,
        layer.post_attention_layernorm,
        *(each for each in of_heads if each is not None),
    ]


def _linears(layer: Any) -> list[Any]:
    """In the order of the kernel."""
    attention, mlp = layer.self_attn, layer.mlp
    of_attention = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*of_attention, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


class _NativeLayer:
    """A decoder layer, and its ``forward`` in place of the module's."""

    def __init__(
        self, layer: Any, norms: list[Any], linears: list[Any], window: int | None, *, trims: bool
    ) -> None:
        attention = layer.self_attn
        of_heads = norms[2:]
        self._kernel = kernel("wavepp_decoder_layer", ctypes.POINTER(_DecoderLayer), *_ARGUMENTS)
        self._number: int = attention.layer_idx
        self._linears = linears
        self._trims = trims
        self._otherwise: Callable[..., torch.Tensor] = layer.forward
        self._most: dict[int, int] = {}
        self._layer = _DecoderLayer(
            *(norm.weight.data_ptr() for norm in norms),
            *(() if of_heads else (None, None)),
            *map(_Linear.of, linears),
            attention.head_dim,
            window or 0,
            norms[0].variance_epsilon,
            of_heads[0].variance_epsilon if of_heads else 0.0,
            attention.scaling,
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        past_key_values: PagedCache,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As the module's own, for the current wave; what else transformers hands in has no meaning here."""
        tokens, threads = hidden_states.shape[1], torch.get_num_threads()
        if tokens > self._most_tokens(threads):
            return self._otherwise(
                hidden_states,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                **kwargs,
            )
        wave = current_wave()
        keys, values, at_hand = past_key_values.place(self._number, wave)
        spans = at_hand.spans
        hidden_states = hidden_states.contiguous()
        cos, sin = (part.contiguous() for part in position_embeddings)
        out = torch.empty_like(hidden_states)
        self._kernel(
            self._layer,
            hidden_states.data_ptr(),
            tokens,
            cos.data_ptr(),
            sin.data_ptr(),
            at_hand.write_slots.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            spans.tables.data_ptr(),
            spans.table_at.data_ptr(),
            spans.starts.data_ptr(),
            spans.lengths.data_ptr(),
            len(spans.starts),
            wave.block_size,
            out.data_ptr(),
            threads,
            hidden_states.dtype is torch.bfloat16,
        )
        # With so few tokens it is no less work to leave some of them out.
        return out[:, wave.wanted] if self._trims and wave.trimmed else out

    def _most_tokens(self, threads: int) -> int:
        if threads not in self._most:
            self._most[threads] = min(map(most_tokens, self._linears))
        return self._most[threads]


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
