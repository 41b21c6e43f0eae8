"""Decoder layers like Llama's compute in one call: the kernel of ``decoder_layers.cpp``.

A layer is a dozen operations. Of few tokens each takes some microseconds, and Python as long again to go on to the
next. A wave of more tokens than the layers' matrix products take (``most_tokens``), or with requests that go through
adapters, goes through their modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from wavepp_worker.model.cpu.native_attention import RequestSpans
from wavepp_worker.model.cpu.native_library import kernel
from wavepp_worker.model.cpu.native_linear import NativeLinear, most_tokens
from wavepp_worker.model.known_code import computes_as, is_llama_layer
from wavepp_worker.model.known_modules import is_gated_silu
from wavepp_worker.model.kv.paged_kv import PagedCache
from wavepp_worker.model.kv.wave_layout import current_wave
from wavepp_worker.model.layer_calls import LayerCall, LayerCalls
from wavepp_worker.model.lora_branches import has_branch, hooks_are_branches

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _ADDRESS) for name in ("weight", "bias")),
        *((name, _NUMBER) for name in ("packed", "in", "out")),
    )

    @classmethod
    def of(cls, layer: NativeLinear) -> _Linear:
        bias = None if layer.bias is None else layer.bias.data_ptr()
        return cls(layer.stored.data_ptr(), bias, layer.packed, layer.in_features, layer.out_features)


class _DecoderLayer(ctypes.Structure):
    """Must have the fields of ``DecoderLayer`` in ``decoder_layers.cpp``."""

    _fields_ = (
        *((name, _ADDRESS) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _Linear) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, _NUMBER) for name in ("head_dim", "window")),
        *((name, ctypes.c_double) for name in ("norm_eps", "head_norm_eps", "scale")),
    )

    @classmethod
    def of(cls, layer: Any, window: int | None) -> _DecoderLayer:
        attention, norms = layer.self_attn, _norms(layer)
        of_heads = norms[2:]
        return cls(
            *(norm.weight.data_ptr() for norm in norms),
            *(() if of_heads else (None, None)),
            *map(_Linear.of, _linears(layer)),
            attention.head_dim,
            window or 0,
            norms[0].variance_epsilon,
            of_heads[0].variance_epsilon if of_heads else 0.0,
            attention.scaling,
        )


class _Spans(ctypes.Structure):
    _fields_ = (
        *((name, _ADDRESS) for name in ("tables", "table_at", "starts", "lengths")),
        ("chunks", _NUMBER),
    )

    @classmethod
    def of(cls, spans: RequestSpans) -> _Spans:
        parts = (spans.tables, spans.table_at, spans.starts, spans.lengths)
        return cls(*(part.data_ptr() for part in parts), len(spans.starts))


class _Wave(ctypes.Structure):
    """Must have the fields of ``Wave`` in ``decoder_layers.cpp``."""

    _fields_ = (
        ("tokens", _NUMBER),
        *((name, _ADDRESS) for name in ("cos", "sin", "slots")),
        ("all", _Spans),
        ("wanted", _ADDRESS),
        ("wanted_count", _NUMBER),
        ("wanted_spans", _Spans),
        *((name, _NUMBER) for name in ("block", "threads", "narrow")),
    )


def fuse_decoder_layers(
    layers: nn.ModuleList, windows: Mapping[int, int | None], calls: LayerCalls, *, trims: bool
) -> None:
    """Have decoder layers that the kernel knows, and that follow each other, compute in one call.

    Their weights, norms included, have to stay where they are in memory from now on.

    Args:
        layers: of the whole model.
        windows: by the number of each layer whose attention is fused (``fuse_attention``), in order, how many tokens
            one of its tokens sees, itself included; None for all.
        calls: of a forward of the model.
        trims: its last layer answers for wanted tokens only (``last_layer``).
    """
    run: list[int] = []
    for number in (number for number in windows if _is_known(layers[number], calls.only(number))):
        if run and not (
            number == run[-1] + 1 and calls.follows(number) and windows[number] == windows[run[-1]]
        ):
            FusedDecoderLayers(layers, run, windows[run[0]], trims=trims).install()
            run = []
        run.append(number)
    if run:
        FusedDecoderLayers(layers, run, windows[run[0]], trims=trims).install()


def _is_known(layer: Any, call: LayerCall | None) -> bool:
    if call is None or not {"position_embeddings", "past_key_values"} <= call.named.keys():
        return False
    if not is_llama_layer(layer) or not is_gated_silu(layer.mlp):
        return False
    norms, linears = _norms(layer), _linears(layer)
    dtype = norms[0].weight.dtype
    weights = [norm.weight for norm in norms]
    return (
        all(computes_as(norm, LlamaRMSNorm) for norm in norms)
        # The kernel has one epsilon for both norms of the layer, and one for both of the heads.
        and [norm.variance_epsilon for norm in norms[::2]] == [norm.variance_epsilon for norm in norms[1::2]]
        and all(isinstance(each, NativeLinear) and hooks_are_branches(each) for each in linears)
        and all(each.dtype is dtype for each in (*weights, *(linear.stored for linear in linears)))
    )


def _norms(layer: Any) -> list[Any]:
    """In the order of the kernel; those of queries' and keys' heads last, if there are such."""
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    # As ``fuse_attention`` knows no attention that has one of them alone.
    return (
        [*norms, layer.self_attn.q_norm, layer.self_attn.k_norm]
        if hasattr(layer.self_attn, "q_norm")
        else norms
    )


def _linears(layer: Any) -> list[Any]:
    """In the order of the kernel."""
    attention, mlp = layer.self_attn, layer.mlp
    of_attention = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*of_attention, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


class FusedDecoderLayers:
    """Layers that follow each other: the first computes for all of them, and the others hand its answer on."""

    def __init__(
        self, layers: nn.ModuleList, numbers: Sequence[int], window: int | None, *, trims: bool
    ) -> None:
        """Takes the addresses of the layers' weights. Arguments as of ``fuse_decoder_layers``."""
        self._kernel = kernel(
            "wavepp_decoder_layers",
            ctypes.POINTER(_DecoderLayer),
            *(_ADDRESS,) * 2,
            _NUMBER,
            ctypes.POINTER(_Wave),
            *(_ADDRESS,) * 3,
        )
        self._numbers = range(numbers[0], numbers[-1] + 1)
        self._trims = trims and numbers[-1] == len(layers) - 1
        self._linears = [linear for number in numbers for linear in _linears(layers[number])]
        self._branched = any(map(has_branch, self._linears))
        self._most: dict[int, int] = {}
        self._layers = (_DecoderLayer * len(numbers))(
            *(_DecoderLayer.of(layers[number], window) for number in numbers)
        )
        first = self._linears[0]
        self._dtype, self._hidden_size = first.stored.dtype, first.in_features
        self._modules = [layers[number] for number in numbers]

    def install(self) -> None:
        """Take the place of the layers' ``forward``."""
        for number, layer in zip(self._numbers, self._modules, strict=True):
            layer.forward = partial(self.forward, number, layer.forward)

    def forward(
        self,
        number: int,
        otherwise: Callable[..., torch.Tensor],
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        past_key_values: PagedCache,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As a module's own, for the current wave; what else transformers hands in has no meaning here."""
        fits = hidden_states.dtype is position_embeddings[0].dtype is self._dtype
        fits = fits and hidden_states.shape[2] == self._hidden_size
        if (
            not fits
            or (self._branched and current_wave().adapted)
            or current_wave().tokens > self._most_tokens(torch.get_num_threads())
        ):
            return otherwise(
                hidden_states,
                position_embeddings=position_embeddings,
                past_key_values=past_key_values,
                **kwargs,
            )
        if number == self._numbers[0]:
            return self._compute(hidden_states, position_embeddings, past_key_values)
        return hidden_states

    def _compute(
        self, hidden: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor], cache: PagedCache
    ) -> torch.Tensor:
        """Hidden states ``[1, tokens, hidden]`` after all of them, of a trimmed last layer ``[1, wanted, hidden]``."""
        wave = current_wave()
        keys, values = cache.addresses(self._numbers)
        at_hand = cache.place(self._numbers[0], wave)[2]
        hidden = hidden.contiguous()
        cos, sin = (part.contiguous() for part in positions)
        out = torch.empty_like(hidden)
        trims = self._trims and wave.trimmed
        wanted_count = len(wave.wanting) if trims else 0
        wanted = hidden.new_empty(1, wanted_count, hidden.shape[2])
        # Has to outlive the call, as the kernel reads its tensors.
        wanted_spans = at_hand.last_tokens(wave.wanting) if wanted_count else None
        given = _Wave(
            hidden.shape[1],
            cos.data_ptr(),
            sin.data_ptr(),
            at_hand.write_slots.data_ptr(),
            _Spans.of(at_hand.spans),
            wave.wanted.data_ptr(),
            wanted_count,
            _Spans() if wanted_spans is None else _Spans.of(wanted_spans),
            wave.block_size,
            torch.get_num_threads(),
            self._dtype is torch.bfloat16,
        )
        self._kernel(
            self._layers,
            keys,
            values,
            len(self._numbers),
            given,
            hidden.data_ptr(),
            out.data_ptr(),
            # Of no token there is no address, but the layer's keys and values are wanted.
            (wanted.data_ptr() or out.data_ptr()) if trims else None,
        )
        return wanted if trims else out

    def _most_tokens(self, threads: int) -> int:
        """The most that all linear layers take with so many of torch's threads."""
        if threads not in self._most:
            self._most[threads] = min(map(most_tokens, self._linears))
        return self._most[threads]
