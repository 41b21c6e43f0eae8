"""What the runtime must know of a model's architecture, remembered so that a process need not import transformers.

Importing torch and transformers, and building the model without memory, takes seconds; what comes of it depends on the
configuration, on transformers and on our rules alone, so it is kept in the user's cache directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import msgspec

from wavepp_worker.model.files.checkpoint import read_json
from wavepp_worker.model.files.user_cache import cache_root, keep, read_kept
from wavepp_worker.model.kv.layer_cache import LayerCache

_RULES = (
    "architecture.py",
    "architecture_facts.py",
    "files/quantisation.py",
    "kv/layer_cache.py",
    "last_layer.py",
    "recurrent_mixer.py",
)

_MOST_BYTES = 1 << 20


class ArchitectureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says of a model that a pipeline can run.

    Attributes:
        num_layers: decoder layers.
        vocab_size: rows of the embedding.
        hidden_size: width of the activations between layers.
        context_length: most positions the model was made for; None if that is not said.
        eos_token_ids: ids that end a generation.
        layer_costs: work of each layer, in parameters that one prompt token is multiplied with.
        embedding_cost: the same for the embedding, on the first stage.
        head_cost: the same for the output head, on the last stage.
        caches: what each layer keeps.
    """

    num_layers: int
    vocab_size: int
    hidden_size: int
    context_length: int | None
    eos_token_ids: tuple[int, ...]
    layer_costs: tuple[float, ...]
    embedding_cost: float
    head_cost: float
    caches: tuple[LayerCache, ...]


def architecture_facts(model_dir: Path) -> ArchitectureFacts:
    """The facts of a Hugging Face directory's ``config.json``, found out if they are not remembered.

    Raises:
        ConfigError: the architecture is not supported; begins with ``model``.
    """
    place = _place(model_dir)
    known = _read(place)
    if known is None:
        known = _found_out(model_dir)
        _remember(place, known)
    return known


def remembered(model_dir: Path) -> ArchitectureFacts | None:
    """The facts, if they were found out before.

    Raises:
        ConfigError: ``config.json`` cannot be read; begins with ``model``.
    """
    return _read(_place(model_dir))


def _read(place: Path) -> ArchitectureFacts | None:
    kept = read_kept(place, _MOST_BYTES)
    with contextlib.suppress(msgspec.MsgspecError):
        return None if kept is None else msgspec.json.decode(kept, type=ArchitectureFacts)
    return None


def _found_out(model_dir: Path) -> ArchitectureFacts:
    # Imported late: this is what the facts are remembered for.
    from wavepp_worker.model.architecture import model_caches, outline, read_config

    config = read_config(model_dir)
    parts = outline(config)
    ended = config.eos_token_id
    return ArchitectureFacts(
        num_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context_length=getattr(config, "max_position_embeddings", None),
        eos_token_ids=tuple(ended) if isinstance(ended, list) else () if ended is None else (ended,),
        layer_costs=parts.layer_costs,
        embedding_cost=parts.embedding_cost,
        head_cost=parts.head_cost,
        caches=model_caches(config),
    )


def _remember(place: Path, facts: ArchitectureFacts) -> None:
    # What a foreign file says may be of any type: then it is found out each time.
    with contextlib.suppress(TypeError, msgspec.MsgspecError):
        keep(place, msgspec.json.encode(facts))


def _place(model_dir: Path) -> Path:
    """By what the facts depend on: the configuration, transformers, and our rules."""
    said = json.dumps(read_json(model_dir / "config.json"))
    rules = [(Path(__file__).parent / name).read_bytes() for name in _RULES]
    parts = (said.encode(), version("transformers").encode(), *rules)
    digest = hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    return cache_root() / "architectures" / f"{digest[:32]}.json"
