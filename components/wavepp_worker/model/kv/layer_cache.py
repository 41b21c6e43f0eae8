"""What each kind of layer keeps in the cache: the one place that says it. Needs no tensor library.

A *kind* of layer is what transformers calls it (``layer_types``) together with how its attention is made; which model
it is in does not matter. ``layer_caches`` reads a configuration and answers with one ``LayerCache`` per layer. Pools,
byte counts, hand-off, tiers and admission go by that, and a stage that is loaded checks that its layers keep just what
is said here. A new kind is a function and a line in ``_KINDS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.dtype_choice import DTYPE_BYTES

Lookup = Callable[[str], Any]
"""A configuration: the value of a key, None where it says nothing (``dict.get``, or ``getattr`` with a default)."""

_BYTES = {**DTYPE_BYTES, "uint8": 1}

Policy = Literal["full", "sliding", "recurrent"]
"""How a cache is kept, see ``WindowSpec.kind``."""

SCALE_BYTES = 4
"""Of the float32 that stands behind every row of numbers in FP8."""

LATENT = "latent_attention"
INDEXED = "indexed_latent_attention"
"""Latent attention that reads only the tokens that its indexer picks."""
SHARED_INDEX = "shared_index_latent_attention"
"""The same that reads what the nearest layer before it with an indexer has picked."""

DELTA_NET = "gated_delta_net"
KIMI_DELTA = "kimi_delta_attention"


@dataclass(frozen=True)
class CachedTensor:
    """One tensor that a layer keeps.

    Attributes:
        name: what it is.
        shape: of one token; of one state where the policy is ``recurrent``. Of tokens it is ``(heads, dim)``.
        dtype: name, where it is another than the model is computed in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None

    def bytes(self, dtype: str) -> int:
        """Of one token or state, where the model is computed in ``dtype``."""
        return math.prod(self.shape) * _BYTES[self.dtype or dtype]


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps.

    Attributes:
        kind: of layer, for messages and reports; see ``layer_kinds``.
        policy: ``full`` keeps every token, ``sliding`` the last ``span`` ones, ``recurrent`` a state of all of them.
        tensors: in the order in which they lie in pools and travel.
        span: of a sliding window: how many tokens before a token it sees at most, itself included; else 0.
    """

    kind: str
    policy: Policy
    tensors: tuple[CachedTensor, ...]
    span: int = 0

    @property
    def per_token(self) -> bool:
        """Whether it grows with tokens."""
        return self.policy != "recurrent"

    @property
    def numbers(self) -> int:
        """That one token takes, or one state."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def bytes(self, dtype: str) -> int:
        """That one token takes, or one state, where the model is computed in ``dtype``."""
        return sum(tensor.bytes(dtype) for tensor in self.tensors)


def layer_caches(config: Lookup) -> tuple[LayerCache, ...]:
    """What every layer of a model keeps, by layer number.

    Where no layer attends to everything, windows are kept whole, as ``full``: routers are told of a prefix tree, and
    only layers that keep every token have one.

    Raises:
        ConfigError: a layer is of a kind that is not known, or the configuration does not say what it needs to.
    """
    caches = [_KINDS[kind](config, at, kind) for at, kind in enumerate(layer_kinds(config))]
    if not any(cache.policy == "full" for cache in caches):
        caches = [
            LayerCache(cache.kind, "full", cache.tensors) if cache.policy == "sliding" else cache
            for cache in caches
        ]
    return tuple(caches)


def in_fp8(caches: Sequence[LayerCache]) -> tuple[LayerCache, ...]:
    """The same layers with what they keep of tokens in FP8, each row with a scale; states stay as they are.

    Raises:
        ConfigError: a kind of layer has none; names ``kv_dtype``.
    """
    if unable := sorted({cache.kind for cache in caches} & {INDEXED, SHARED_INDEX}):
        raise ConfigError(
            f"kv_dtype: fp8 is not supported for layers of {', '.join(unable)}, whose indexer reads its keys as they "
            "are; set kv_dtype to auto"
        )
    return tuple(
        replace(cache, tensors=tuple(_row_of_bytes(tensor) for tensor in cache.tensors))
        if cache.per_token
        else cache
        for cache in caches
    )


def _row_of_bytes(tensor: CachedTensor) -> CachedTensor:
    *heads, dim = tensor.shape
    return CachedTensor(tensor.name, (*heads, dim + SCALE_BYTES), "uint8")


def layer_kinds(config: Lookup) -> tuple[str, ...]:
    """The kind of every layer: a key of ``_KINDS``.

    Raises:
        ConfigError: one is not known.
    """
    layers = _said(config, "num_hidden_layers")
    given = config("layer_types")
    if given is None:
        window = config("sliding_window") if config("use_sliding_window") is not False else None
        given = (
            _older_types(config, layers)
            or ["full_attention" if window is None else "sliding_attention"] * layers
        )
    if not isinstance(given, list | tuple) or len(given) != layers or {*map(type, given)} != {str}:
        raise ConfigError(
            f"model: the configuration's layer_types are not {layers} names (num_hidden_layers)"
        )
    latent = config("kv_lora_rank") is not None
    indexed = config("index_topk") is not None
    indexers = config("indexer_types") or ["full"] * layers
    if not isinstance(indexers, list | tuple) or len(indexers) != layers:
        raise ConfigError(
            f"model: the configuration's indexer_types are not {layers} names (num_hidden_layers)"
        )
    if indexed and indexers and indexers[0] == "shared":
        raise ConfigError(
            "model: the configuration's indexer_types begin with shared, where no layer before has picked tokens"
        )
    kinds = []
    for layer, name in enumerate(given):
        kind = name
        if latent and name in ("full_attention", "indexed_attention"):
            kind = LATENT
            if indexed:
                kind = SHARED_INDEX if indexers[layer] == "shared" else INDEXED
        elif name == "linear_attention" and config("linear_num_value_heads") is not None:
            kind = DELTA_NET
        elif name == "linear_attention" and (config("linear_num_heads") or config("linear_attn_config")):
            kind = KIMI_DELTA
        kinds.append(kind)
    if unknown := sorted(set(kinds) - _KINDS.keys()):
        raise ConfigError(
            f"model: layers of kind {', '.join(unknown)} are not supported; those that are: {', '.join(_KINDS)}"
        )
    return tuple(kinds)


def _older_types(config: Lookup, layers: int) -> list[str] | None:
    """Types of layers as files of three families say them, in place of ``layer_types``; None if they do not."""
    if config("full_attention_interval") is not None:
        return _every(layers, _said(config, "full_attention_interval"), "linear_attention")
    if config("linear_attn_config") is not None:
        numbers = _nested(config).get("full_attn_layers")
        if not isinstance(numbers, list | tuple) or {*map(type, numbers)} - {int}:
            raise ConfigError(
                f"model: the configuration's linear_attn_config says full_attn_layers: {numbers!r}; they are numbers "
                "of layers"
            )
        attend = set(numbers)
        return ["full_attention" if layer + 1 in attend else "linear_attention" for layer in range(layers)]
    if config("sliding_window_pattern") is not None and config("sliding_window") is not None:
        return _every(layers, _said(config, "sliding_window_pattern"), "sliding_attention")
    return None


def _every(layers: int, interval: int, others: str) -> list[str]:
    """The last of each ``interval`` layers attends to everything."""
    return [others if (layer + 1) % interval else "full_attention" for layer in range(layers)]


def _attention(config: Lookup, layer: int, kind: str) -> LayerCache:
    """Heads of keys and values, after any norm and rotation."""
    del layer
    row = (_said(config, "num_key_value_heads"), _head_dim(config))
    tensors = (CachedTensor("keys", row), CachedTensor("values", row))
    if kind == "full_attention":
        return LayerCache(kind, "full", tensors)
    return LayerCache(kind, "sliding", tensors, _said(config, "sliding_window"))


def _latent(config: Lookup, layer: int, kind: str) -> LayerCache:
    """MLA: the latent that keys and values of all heads are made of, and the one rotated key."""
    del layer
    latent, rotary = _said(config, "kv_lora_rank"), _said(config, "qk_rope_head_dim")
    tensors = [CachedTensor("latent", (1, latent)), CachedTensor("rotary key", (1, rotary))]
    if kind == INDEXED:
        # What the indexer compares queries with, to pick the tokens that are read.
        tensors.append(CachedTensor("index key", (1, _said(config, "index_head_dim"))))
    return LayerCache(kind, "full", tuple(tensors))


def _delta_net(config: Lookup, layer: int, kind: str) -> LayerCache:
    """Gated DeltaNet: a matrix for each head of values, and what the convolution before it still has to see."""
    del layer
    heads, values = _said(config, "linear_num_value_heads"), _said(config, "linear_value_head_dim")
    keys = _said(config, "linear_key_head_dim")
    channels = 2 * keys * _said(config, "linear_num_key_heads") + heads * values
    return _state(kind, (heads, keys, values), channels, _said(config, "linear_conv_kernel_dim"))


def _kimi_delta(config: Lookup, layer: int, kind: str) -> LayerCache:
    """Kimi's: as gated DeltaNet, with as many heads of keys as of values, and all of one dim."""
    del layer
    nested = _nested(config)

    def said(key: str, in_files: str) -> int:
        return _said(nested.get, in_files) if in_files in nested else _said(config, key)

    heads, dim = said("linear_num_heads", "num_heads"), said("linear_head_dim", "head_dim")
    kernel = said("linear_conv_kernel_dim", "short_conv_kernel_size")
    return _state(kind, (heads, dim, dim), 3 * heads * dim, kernel)


def _nested(config: Lookup) -> Mapping[str, Any]:
    said = config("linear_attn_config")
    if said is not None and not isinstance(said, Mapping):
        raise ConfigError(
            f"model: the configuration says linear_attn_config: {said!r}, where an object belongs"
        )
    return said or {}


def _state(kind: str, matrices: tuple[int, ...], channels: int, kernel: int) -> LayerCache:
    state = CachedTensor("state", matrices, "float32")
    return LayerCache(
        kind, "recurrent", (state, CachedTensor("convolution's inputs", (channels, kernel - 1)))
    )


_KINDS: dict[str, Callable[[Lookup, int, str], LayerCache]] = {
    "full_attention": _attention,
    "sliding_attention": _attention,
    LATENT: _latent,
    INDEXED: _latent,
    SHARED_INDEX: _latent,
    DELTA_NET: _delta_net,
    KIMI_DELTA: _kimi_delta,
}


def _head_dim(config: Lookup) -> int:
    dim = config("head_dim")
    return dim if dim is not None else _said(config, "hidden_size") // _said(config, "num_attention_heads")


def _said(config: Lookup, key: str) -> int:
    value = config(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"model: the configuration says {key}: {value!r}; it is a whole number of at least 1"
        )
    return value


def token_bytes(caches: Sequence[LayerCache], dtype: str) -> int:
    """Bytes of one token over those of these layers whose cache grows with tokens."""
    return sum(cache.bytes(dtype) for cache in caches if cache.per_token)


def state_bytes(caches: Sequence[LayerCache], dtype: str) -> int:
    """Bytes of one state over those of these layers that are recurrent."""
    return sum(cache.bytes(dtype) for cache in caches if not cache.per_token)


def window_bytes(caches: Sequence[LayerCache | None], dtype: str) -> dict[int, int]:
    """Bytes of one token over those of these layers that have a window, by its span."""
    sizes: dict[int, int] = {}
    for cache in caches:
        if cache is not None and cache.span:
            sizes[cache.span] = sizes.get(cache.span, 0) + cache.bytes(dtype)
    return sizes


def keeping_everything(caches: Sequence[LayerCache], stages: Sequence[range]) -> frozenset[int]:
    """The stages some layer of which keeps every token of a prompt; all, of a model that says nothing of its layers."""
    return frozenset(
        number
        for number, layers in enumerate(stages)
        if not caches or any(caches[layer].policy == "full" for layer in layers)
    )
