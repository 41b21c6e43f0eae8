"""What a model is made of and how a pipeline would hold it, from its configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.architecture import Outline, known_config, model_caches, outline, shortcomings
from wavepp_worker.model.dtype_choice import DTYPE_BYTES, dtype_name
from wavepp_worker.model.files.checkpoint import read_json
from wavepp_worker.model.files.quantisation import scheme_of
from wavepp_worker.model.kv.layer_cache import LayerCache, in_fp8, window_bytes
from wavepp_worker.model.kv.window_pool import tier_bytes, window_pool
from wavepp_worker.model.partition import partition_layers
from wavepp_worker.model.timed.timed_model import is_timed

_Kept = tuple[int | None, int | None]
"""Bytes of a token, and of a state."""
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


class LayerKind(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that are alike.

    Attributes:
        attention: such as ``full_attention``, ``sliding_attention``, ``latent_attention`` or ``linear_attention``.
        feed_forward: ``dense`` or ``experts``.
        window: tokens that a token sees, itself included; None for all before it.
        layers: their numbers.
        parameters: of one of them.
        active_parameters: of one of them that one token meets, as it is routed to some experts.
        cache_bytes: that one token takes in the cache of one of them; None if that cannot be told.
        state_bytes: of the state that one of them has of a prompt, however long that is; 0 where tokens are kept.
    """

    attention: str
    feed_forward: str
    window: int | None
    layers: tuple[int, ...]
    parameters: int
    active_parameters: int
    cache_bytes: int | None
    state_bytes: int | None


class StageShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of a pipeline would hold.

    Attributes:
        layers: number of the first, and of the one after the last.
        weight_bytes: of these, and of embedding, norm and head where it has them.
        cache_bytes: that one token takes in its cache; None if that cannot be told.
        windows: of layers that see the last tokens only ``(window, bytes)``: of ``cache_bytes`` what a token takes in
            those with such a window, whose pools are smaller.
        state_bytes: of its state of one prompt, running or as a snapshot; 0 where no layer is recurrent.
    """

    rank: int
    layers: tuple[int, int]
    weight_bytes: int
    cache_bytes: int | None
    windows: tuple[tuple[int, int], ...]
    state_bytes: int | None

    def pool_bytes(self, tokens: int, block_size: int, requests: int, wave_tokens: int) -> int | None:
        """Bytes of the pools of an engine with ``kv_tokens`` and these settings, without states."""
        if self.cache_bytes is None:
            return None
        blocks, amount = tokens // block_size, self.cache_bytes
        total = 0
        for span, size in self.windows:
            total += window_pool(blocks, block_size, span, requests, wave_tokens)[0] * size
            amount -= size
        return block_size * (total + blocks * amount)

    def tier_bytes(self, tokens: int, block_size: int) -> int | None:
        """Bytes of a tier of ``host_kv_tokens`` or ``disk_kv_tokens``, without states and what a file has besides."""
        if self.cache_bytes is None:
            return None
        return tier_bytes(self.cache_bytes, dict(self.windows), tokens // block_size, block_size)


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """A model directory, looked at without its weights.

    Attributes:
        architecture: transformers' name of it.
        parameters: all there are.
        active_parameters: those that one token meets.
        dtype: that weights, activations and cache are computed in and kept as.
        heads: of queries.
        kv_heads: of keys and values; 1 where they are a latent.
        experts: of which a token is routed to ``experts_per_token``; 0 if there are none.
        quantisation: scheme of the weights in the files; None if they are plain numbers.
        unsupported: why a pipeline cannot run it, a sentence each.
    """

    model: str
    architecture: str
    parameters: int
    active_parameters: int
    hidden_size: int
    vocab_size: int
    context_length: int | None
    dtype: str
    heads: int | None
    kv_heads: int | None
    experts: int
    experts_per_token: int
    quantisation: str | None
    kinds: tuple[LayerKind, ...]
    stages: tuple[StageShare, ...]
    unsupported: tuple[str, ...]


def inspect_model(
    model_dir: Path,
    pp: int = 1,
    partition: tuple[int, ...] | None = None,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    device: str = "cpu",
) -> Inspection:
    """Look at ``config.json`` of a Hugging Face directory; weights and tokenizer need not be there.

    Args:
        pp, partition: how it shall be split, as for an engine.
        dtype: ``auto`` for the one that a worker takes where the configuration names the checkpoint's.
        kv_dtype: ``auto`` for ``dtype``, or ``fp8``.
        device: that it would be computed on, which ``auto`` depends on.

    Raises:
        ConfigError: transformers does not know the model, it is not made of layers, or the split does not fit it.
    """
    if is_timed(model_dir):
        raise ConfigError(f"model: {model_dir} is a timed model, which has no layers to look at")
    if not (model_dir / "config.json").is_file():
        raise ConfigError(
            f"model: {model_dir} has no config.json; give the path of a Hugging Face model directory"
        )
    config = known_config(model_dir)
    parts = outline(config)
    name = _dtype(config, dtype, device)
    caches = _caches(config)
    if kv_dtype == "fp8":
        known = in_fp8([cache for cache in caches if cache is not None])
        caches = known if len(known) == len(caches) else caches
    cache = [
        (None, None) if one is None else (one.bytes(name), 0) if one.per_token else (0, one.bytes(name))
        for one in caches
    ]
    values = config.to_dict()
    latent = values.get("kv_lora_rank") is not None
    whys = (*_unknown_scheme(model_dir), *shortcomings(config))
    quantisation = read_json(model_dir / "config.json").get("quantization_config") or {}
    return Inspection(
        model=str(model_dir),
        architecture=config.model_type,
        parameters=sum(parts.parameters) + parts.embedding + config.hidden_size + _own_head(config, parts),
        active_parameters=round(sum(parts.layers)) + parts.head,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_length=getattr(config, "max_position_embeddings", None),
        dtype=name,
        heads=values.get("num_attention_heads"),
        kv_heads=1 if latent else values.get("num_key_value_heads"),
        experts=next((values[key] for key in _EXPERTS if values.get(key)), 0),
        experts_per_token=values.get("num_experts_per_tok") or 0,
        quantisation=quantisation.get("quant_method"),
        kinds=tuple(_kinds(_attention(config, caches), parts, cache)),
        stages=tuple(_stages(config, parts, caches, cache, pp, partition, name)),
        unsupported=tuple(f"{why[0].upper()}{why[1:]}." for why in whys),
    )


def _dtype(config: Any, asked: str, device: str) -> str:
    stored = "bfloat16" if config.dtype is None else str(config.dtype).removeprefix("torch.")
    name = dtype_name(asked, stored, device)
    return name if name in DTYPE_BYTES else "float32"


def _unknown_scheme(model_dir: Path) -> Iterator[str]:
    try:
        scheme_of(read_json(model_dir / "config.json"))
    except ConfigError as error:
        yield str(error).removeprefix("model: ")


def _caches(config: Any) -> Sequence[LayerCache | None]:
    """What each layer keeps; None where that is not known of some kind of layer."""
    try:
        return model_caches(config)
    except ConfigError:
        return [None] * config.num_hidden_layers


def _attention(config: Any, caches: Sequence[LayerCache | None]) -> list[str]:
    said = getattr(config, "layer_types", None) or ["unknown"] * len(caches)
    return [kind if cache is None else cache.kind for kind, cache in zip(said, caches, strict=True)]


def _kinds(attention: Sequence[str], parts: Outline, cache: Sequence[_Kept]) -> Iterator[LayerKind]:
    alike: dict[tuple[Any, ...], list[int]] = {}
    rows = zip(
        attention,
        parts.windows,
        parts.parameters,
        map(round, parts.layers),
        cache,
        strict=True,
    )
    for layer, row in enumerate(rows):
        alike.setdefault(row, []).append(layer)
    for (kind, window, parameters, active, (cache_bytes, state_bytes)), layers in alike.items():
        yield LayerKind(
            attention=kind,
            feed_forward="experts" if active < parameters else "dense",
            window=window,
            layers=tuple(layers),
            parameters=parameters,
            active_parameters=active,
            cache_bytes=cache_bytes,
            state_bytes=state_bytes,
        )


def _stages(
    config: Any,
    parts: Outline,
    caches: Sequence[LayerCache | None],
    cache: Sequence[_Kept],
    pp: int,
    partition: tuple[int, ...] | None,
    dtype: str,
) -> Iterator[StageShare]:
    each = DTYPE_BYTES[dtype]
    for rank, layers in enumerate(partition_layers(parts, pp, partition)):
        numbers = sum(parts.parameters[layer] for layer in layers)
        numbers += parts.embedding if rank == 0 else 0
        if rank == pp - 1:
            # A head that shares the embedding's weights has them a second time where it is on another stage.
            numbers += config.hidden_size + (_own_head(config, parts) if pp == 1 else parts.head)
        tokens, states = zip(*(cache[layer] for layer in layers), strict=True)
        yield StageShare(
            rank=rank,
            layers=(layers.start, layers.stop),
            weight_bytes=numbers * each,
            cache_bytes=None if None in tokens else sum(tokens),
            windows=tuple(sorted(window_bytes([caches[layer] for layer in layers], dtype).items())),
            state_bytes=None if None in states else sum(states),
        )


def _own_head(config: Any, parts: Outline) -> int:
    return 0 if config.tie_word_embeddings else parts.head
