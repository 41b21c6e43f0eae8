"""What the runtime must know of a model before any rank loads weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.architecture_facts import architecture_facts
from wavepp_worker.model.files.checkpoint import checkpoint_dtype, content_id, read_json, require_model_dir
from wavepp_worker.model.kv.layer_cache import LayerCache
from wavepp_worker.model.timed.timed_model import is_timed, read_timed_model


@dataclass(frozen=True)
class ModelInfo:
    """A model as its configuration and file headers tell it.

    Attributes:
        path: the model directory.
        model_id: 32 hex digits that identify the content, equal on every host that has the same files.
        num_layers: decoder layers.
        vocab_size: rows of the embedding; valid token ids are below it.
        hidden_size: width of the activations between layers.
        context_length: most positions the model was made for.
        eos_token_ids: ids that end a generation.
        dtype: name of the dtype of the checkpoint's weights.
        layer_costs: work of each layer, in parameters that one prompt token is multiplied with.
        embedding_cost: the same for the embedding, on the first stage.
        head_cost: the same for the output head, on the last stage.
        caches: what each layer keeps; empty of a timed model.
    """

    path: Path
    model_id: str
    num_layers: int
    vocab_size: int
    hidden_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    layer_costs: tuple[float, ...]
    embedding_cost: float
    head_cost: float
    caches: tuple[LayerCache, ...] = ()

    @property
    def recurrent(self) -> frozenset[int]:
        """Layers that have a state in place of something for each token."""
        return frozenset(layer for layer, cache in enumerate(self.caches) if not cache.per_token)


def read_model_info(model_dir: Path) -> ModelInfo:
    """Read a Hugging Face directory without loading weights, or a timed model's (see ``model.timed_model``).

    Raises:
        ConfigError: it is neither, lacks a file, or its architecture is not supported; names ``model``.
    """
    model_dir = Path(model_dir)
    if is_timed(model_dir):
        return _timed_info(model_dir)
    require_model_dir(model_dir)
    facts = architecture_facts(model_dir)
    context_length = facts.context_length
    if not context_length:
        raise ConfigError(f"model: {model_dir}/config.json does not say max_position_embeddings; add it")
    return ModelInfo(
        path=model_dir,
        model_id=content_id(model_dir),
        num_layers=facts.num_layers,
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        context_length=context_length,
        eos_token_ids=_eos_token_ids(model_dir, facts.eos_token_ids),
        dtype=checkpoint_dtype(model_dir),
        layer_costs=facts.layer_costs,
        embedding_cost=facts.embedding_cost,
        head_cost=facts.head_cost,
        caches=facts.caches,
    )


def _timed_info(model_dir: Path) -> ModelInfo:
    timed = read_timed_model(model_dir)
    return ModelInfo(
        path=model_dir,
        model_id=timed.model_id,
        num_layers=timed.layers,
        vocab_size=timed.vocabulary,
        hidden_size=max(1, round(timed.activation_bytes / 2)),
        context_length=timed.context_length,
        eos_token_ids=(),
        dtype="bfloat16",
        layer_costs=(1.0,) * timed.layers,
        embedding_cost=0.0,
        head_cost=0.0,
    )


def _eos_token_ids(model_dir: Path, configured: tuple[int, ...]) -> tuple[int, ...]:
    file = model_dir / "generation_config.json"
    generation = read_json(file).get("eos_token_id") if file.is_file() else None
    said = generation if isinstance(generation, list) else [] if generation is None else [generation]
    return tuple(dict.fromkeys([*said, *configured]))
