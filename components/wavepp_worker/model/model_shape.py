"""What a model directory tells at a glance: whether all is there, and its sizes. Needs no tensor library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.chat_template import message_writer
from wavepp_worker.model.files.checkpoint import (
    TOKENIZER,
    checkpoint_dtype,
    read_json,
    require_model_dir,
    require_tokenizer,
    stored_layers,
)
from wavepp_worker.model.kv.layer_cache import LayerCache, in_fp8, layer_caches
from wavepp_worker.model.timed.timed_model import is_timed, read_timed_model


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes, as far as its configuration says them; transformers knows defaults for the others.

    Attributes:
        num_layers: decoder layers.
        context_length: most positions the model was made for.
        dtype: that most of its weights are stored in.
        has_chat_template: whether messages of a chat can be written as a prompt.
        caches: what each layer keeps, by its number; nothing if only transformers can tell.
    """

    num_layers: int | None
    context_length: int | None
    dtype: str
    has_chat_template: bool
    caches: tuple[LayerCache, ...] = ()

    @property
    def kv_numbers(self) -> int:
        """That one token takes in the cache of the layer that keeps most, if that can be told."""
        return max((cache.numbers for cache in self.caches if cache.per_token), default=0)

    def caches_in(self, kv_dtype: str) -> tuple[LayerCache, ...]:
        """``caches`` where ``kv_dtype`` is set to this; raises as ``in_fp8``."""
        return in_fp8(self.caches) if kv_dtype == "fp8" else self.caches


def read_model_shape(model_dir: Path) -> ModelShape:
    """Look at a Hugging Face directory, or a timed model's, and at the headers of its weights.

    Raises:
        ConfigError: a file is missing or damaged; names ``model``.
    """
    if is_timed(model_dir):
        timed = read_timed_model(model_dir)
        return ModelShape(timed.layers, timed.context_length, "bfloat16", has_chat_template=False)
    require_model_dir(model_dir)
    config = read_json(model_dir / "config.json")
    layers, stored = _size(model_dir, config, "num_hidden_layers"), stored_layers(model_dir)
    if layers is not None and 0 < stored < layers:
        raise ConfigError(
            f"model: {model_dir} has weights of {stored} layers, where its config.json says {layers} "
            "(num_hidden_layers); give a directory in which the two belong together"
        )
    return ModelShape(
        layers,
        _size(model_dir, config, "max_position_embeddings"),
        checkpoint_dtype(model_dir),
        has_chat_template(model_dir),
        _caches(config),
    )


def check_served_model(model_dir: Path) -> ModelShape:
    """As ``read_model_shape``, of a model that clients give text to.

    If it is a real one, it has a tokenizer, and its chat template can be read, if it has one.

    Raises:
        ConfigError: a file is missing or damaged; names ``model``.
    """
    shape = read_model_shape(model_dir)
    if not is_timed(model_dir):
        _check_tokenizer(model_dir)
        message_writer(model_dir)
    return shape


def has_chat_template(model_dir: Path) -> bool:
    """Whether a model directory has a chat template, in a file of its own or in the tokenizer's configuration."""
    if any((model_dir / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    file = model_dir / "tokenizer_config.json"
    return file.is_file() and bool(read_json(file).get("chat_template"))


@cache
def _check_tokenizer(model_dir: Path) -> None:
    """Load the tokenizer that Dynamo's frontend will load; of large ones that takes half a second.

    Raises:
        ConfigError: there is none, or it cannot be read; names ``model``.
    """
    # Imported late, as who gives token ids needs none.
    from tokenizers import Tokenizer

    require_tokenizer(model_dir)
    file = model_dir / TOKENIZER
    try:
        Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(
            f"model: {file} cannot be read as a tokenizer ({' '.join(str(error).split())}); save the tokenizer "
            "anew, in its fast form"
        ) from error


def _caches(config: Mapping[str, Any]) -> tuple[LayerCache, ...]:
    try:
        return layer_caches(config.get)
    except ConfigError:
        # What it leaves out, transformers may have a default for.
        return ()


def _size(model_dir: Path, config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"model: {model_dir}/config.json says {key}: {value!r}; it is a whole number of at least 1"
        )
    return value
