"""Which transformers architectures a pipeline can run, and what parts they are made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import read_json
from wavepp_worker.model.files.quantisation import scheme_of
from wavepp_worker.model.known_code import is_llama_layer
from wavepp_worker.model.kv.layer_cache import LayerCache, layer_caches
from wavepp_worker.model.recurrent_mixer import MIXERS

_RECURRENT = "linear_attention"
_LAYER_TYPES = {"full_attention", "sliding_attention", "indexed_attention", _RECURRENT}
# Others rescale with the longest sequence seen so far, so a chunk would depend on what came after it.
_ROPE_TYPES = {"default", "linear", "yarn", "llama3", "proportional"}


# A rank computes logits for one row where a wave brings it hundreds of tokens, but a matrix times one row
# runs up to 16 times slower per row than times hundreds: 16 rows' worth in a wave of 512.
_HEAD_SHARE = 1 / 32
# The embedding copies one row per token and multiplies nothing.
_EMBEDDING_SHARE = 0.0


@dataclass(frozen=True)
class Outline:
    """The parts of a causal language model and their sizes in parameters.

    Attributes:
        layers: parameters that one token meets in each layer (of experts, only those it is routed to).
        embedding: parameters of the input embedding.
        head: parameters of the output head, whether or not it shares the embedding's.
        norm: attribute of the decoder that normalises after the last layer.
        windows: sliding window of each layer in tokens, None for others.
        parameters: all that each layer has, of all experts.
        spared: of ``layers``' last, what only tokens meet whose logits are wanted (``last_layer``).
    """

    layers: tuple[float, ...]
    embedding: int
    head: int
    norm: str
    windows: tuple[int | None, ...]
    parameters: tuple[int, ...]
    spared: float

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer_costs(self) -> tuple[float, ...]:
        """Work of each layer, in parameters that one prompt token is multiplied with."""
        return *self.layers[:-1], self.layers[-1] - self.spared

    @property
    def embedding_cost(self) -> float:
        """The same for the embedding."""
        return self.embedding * _EMBEDDING_SHARE

    @property
    def head_cost(self) -> float:
        """The same for the output head."""
        return self.head * _HEAD_SHARE


def read_config(model_dir: Path) -> Any:
    """The transformers configuration of ``model_dir``.

    Raises:
        ConfigError: transformers does not know it, a pipeline cannot run it, or its weights are quantised in a way that
            cannot be undone.
    """
    scheme_of(read_json(model_dir / "config.json"))
    config = known_config(model_dir)
    for why in shortcomings(config):
        raise _unsupported(config, why)
    return config


def known_config(model_dir: Path) -> Any:
    """As ``read_config``, of whatever causal language model transformers has, whether or not a pipeline can run it.

    Raises:
        ConfigError: transformers does not know it.
    """
    said = read_json(model_dir / "config.json")
    model_type = said.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ConfigError(
            f"model: {model_dir}/config.json says model_type: {model_type!r}, where a name belongs; download it again"
        )
    if model_type is not None and model_type not in CONFIG_MAPPING_NAMES and "auto_map" not in said:
        raise ConfigError(
            f"model: transformers {transformers.__version__} does not know the architecture {model_type}, which "
            f"{model_dir}/config.json names as model_type; choose a model that it knows, or a newer transformers"
        )
    try:
        config = AutoConfig.from_pretrained(model_dir)
    except Exception as error:  # whatever a foreign file makes a configuration class raise
        raise ConfigError(
            f"model: transformers {transformers.__version__} cannot read the configuration of {model_dir} "
            f"(model_type {model_type}): {' '.join(str(error).split()) or type(error).__name__}"
        ) from error
    if config.is_encoder_decoder:
        raise _unsupported(config, "it is an encoder-decoder model")
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unsupported(config, "it is not a causal language model of transformers")
    return config


def shortcomings(config: Any) -> Iterator[str]:
    """Why a pipeline cannot run a model that transformers knows, each as the end of a sentence."""
    kinds = set(getattr(config, "layer_types", None) or ())
    others = sorted(kinds - _LAYER_TYPES)
    if others or (getattr(model_class(config), "_is_stateful", False) and _RECURRENT not in kinds):
        yield f"it has recurrent or other layers ({', '.join(others) or 'stateful'})"
    elif _RECURRENT in kinds and not _known_mixer(config):
        yield "its recurrent layers are of a kind that is not known"
    rope = sorted(_rope_types(config) - _ROPE_TYPES)
    if rope:
        yield f"its rotary embedding ({', '.join(rope)}) depends on the prompt's length"


def _known_mixer(config: Any) -> bool:
    """Whether the architecture's recurrent layers are of a kind that can be run."""
    module = sys.modules[model_class(config).__module__]
    return any(hasattr(module, name) for name in MIXERS)


def model_class(config: Any) -> type[nn.Module]:
    """The ``...ForCausalLM`` class of transformers that runs ``config``."""
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])


def outline(config: Any) -> Outline:
    """Measure a model built without memory.

    Raises:
        ConfigError: it has parts besides embedding, layers, final norm and head, or sizes of which no model can be.
    """
    try:
        with torch.device("meta"):
            model: Any = model_class(config)(config)
    except Exception as error:  # whatever sizes that cannot be make foreign code raise
        raise ConfigError(
            f"model: transformers {transformers.__version__} cannot build a {config.model_type} of these sizes "
            f"({' '.join(str(error).split()) or type(error).__name__}); compare config.json with the original"
        ) from error
    decoder, embedding, head = model.base_model, model.get_input_embeddings(), model.get_output_embeddings()
    layers = getattr(decoder, "layers", None)
    if decoder is model or head is None or not isinstance(layers, nn.ModuleList):
        raise _unsupported(config, "it is not built of an embedding, a list of layers and a head")
    if len(layers) != config.num_hidden_layers:
        raise _unsupported(
            config, f"it has {len(layers)} layers where {config.num_hidden_layers} are configured"
        )
    norms = [name for name, part in _sized(decoder) if part is not embedding and part is not layers]
    extra = [name for name, part in _sized(model) if part is not decoder and part is not head]
    if extra or norms not in (["norm"], ["final_layernorm"]):
        raise _unsupported(
            config, f"it has parts besides embedding, layers, norm and head ({', '.join(norms + extra)})"
        )
    return Outline(
        layers=tuple(_met_by_one_token(layer, config) for layer in layers),
        embedding=sum(p.numel() for p in embedding.parameters()),
        head=sum(p.numel() for p in head.parameters()),
        norm=norms[0],
        windows=_windows(config),
        parameters=tuple(sum(p.numel() for p in layer.parameters()) for layer in layers),
        spared=_met_by_one_token(layers[-1], config, "mlp.") if is_llama_layer(layers[-1]) else 0.0,
    )


def model_caches(config: Any) -> tuple[LayerCache, ...]:
    """What each layer keeps in the cache.

    Raises:
        ConfigError: a layer is of a kind that is not known.
    """
    return layer_caches(lambda key: getattr(config, key, None))


def _sized(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (name, part) for name, part in module.named_children() if next(part.parameters(), None) is not None
    ]


def _met_by_one_token(layer: nn.Module, config: Any, part: str = "") -> float:
    """``part``: how the names of those begin that count."""
    experts = next(
        (
            n
            for n in (
                getattr(config, k, None) for k in ("n_routed_experts", "num_local_experts", "num_experts")
            )
            if n
        ),
        None,
    )
    chosen = getattr(config, "num_experts_per_tok", None)
    for number in (experts, chosen):
        if number is not None and (not isinstance(number, int) or number < 0):
            raise ConfigError(
                f"model: the configuration routes each token to {chosen!r} of {experts!r} experts; both are whole "
                "numbers, so compare config.json with the original"
            )
    share = chosen / experts if experts and chosen else 1.0
    return sum(
        p.numel() * (share if ".experts." in name else 1.0)
        for name, p in layer.named_parameters()
        if name.startswith(part)
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if window is None else "sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope_types(config: Any) -> set[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return {entry.get("rope_type", "default") for entry in nested}


def _unsupported(config: Any, why: str) -> ConfigError:
    return ConfigError(
        f"model: the architecture {config.model_type} is not supported, as {why}; choose a decoder-only "
        "model whose layers all have standard, sliding-window or latent attention, or are gated DeltaNet or KDA"
    )
