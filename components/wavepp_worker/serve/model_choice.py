"""Which model a service runs, and by which name clients ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.architecture_check import check_architecture
from wavepp_worker.model.files.chat_template import message_writer
from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache
from wavepp_worker.model.model_shape import ModelShape, check_served_model
from wavepp_worker.serve.graph import Graph, Service
from wavepp_worker.serve.parsers import parser_of
from wavepp_worker.serve.settings import ServiceSettings

DEMO_MODEL = "<default model>"
"""Stands for the demo model's directory until that exists."""
DEMO_NAME = "SmolLM2-135M-Instruct"


_DEMO_LAYER = LayerCache(
    "full_attention", "full", (CachedTensor("keys", (3, 64)), CachedTensor("values", (3, 64)))
)
DEMO_SHAPE = ModelShape(30, 8192, "bfloat16", has_chat_template=True, caches=(_DEMO_LAYER,) * 30)


@dataclass(frozen=True)
class ModelChoice:
    """What a service runs.

    Attributes:
        name: clients ask for it by this; None if the service takes no such name.
        shape: what is known of the model before anything loads it.
    """

    name: str | None
    shape: ModelShape


def add_model(
    service: Service, flags: dict[str, Any], graph: Graph, settings: Mapping[str, ServiceSettings]
) -> ModelChoice:
    """Settle ``model`` and, where the service takes it, ``served_model_name`` in ``flags``.

    Args:
        flags: the service's, by key; changed.
        settings: every service's of the graph, of which one may name a model for all.

    Raises:
        ConfigError: the directory holds no model that could be loaded; names the key.
    """
    name, model = served_name(flags, graph, settings), _model(flags, settings)
    if model is None:
        flags["model"], shape = DEMO_MODEL, DEMO_SHAPE
    else:
        try:
            directory = fetched_model(service, model)
            shape = check_served_model(directory)
            # Another's worker may run what ours cannot.
            if service.kind == "worker" and service.arguments is not None:
                check_architecture(directory)
        except ConfigError as error:
            raise ConfigError(f"{service.name}.{error}") from error
        flags["model"] = directory.resolve()
    if service.kind != "worker" or "served_model_name" not in service.common:
        return ModelChoice(None, shape)
    flags["served_model_name"] = name
    return ModelChoice(name, shape)


def served_name(flags: Mapping[str, Any], graph: Graph, settings: Mapping[str, ServiceSettings]) -> str:
    """By what clients ask for the model of a worker with these flags, which another worker may name for all."""
    workers = [settings[each.name].flags for each in graph.services if each.kind == "worker"]
    if (asked := _first("served_model_name", [flags, *workers])) is not None:
        return str(asked)
    model = _model(flags, settings)
    if model is None:
        return DEMO_NAME
    # What is not here is an id, and fetched.
    return model.resolve().name if os.path.exists(model) else str(model)


def _model(flags: Mapping[str, Any], settings: Mapping[str, ServiceSettings]) -> Path | None:
    model = _first("model", [flags, *(own.flags for own in settings.values())])
    return None if model is None else Path(str(model)).expanduser()


def _first(key: str, of: Iterable[Mapping[str, Any]]) -> Any:
    return next((flags[key] for flags in of if flags.get(key) is not None), None)


def fetched_model(service: Service, model: Path) -> Path:
    """Where a model lies that may be given by an id: the service's parser fetches it, if it can.

    Raises:
        ConfigError: it could not be fetched; names ``model``.
    """
    parser = parser_of(service)
    return parser.fetch(model) if hasattr(parser, "fetch") else model


def takes_messages(service: Service, flags: Mapping[str, Any], shape: ModelShape) -> bool:
    """Whether what a service serves can be asked with the messages of a chat; a frontend keeps nobody from that."""
    asked = str(flags.get("endpoint_types") or "chat").lower()
    template = shape.has_chat_template or flags.get("custom_jinja_template")
    return service.kind == "frontend" or ("chat" in asked and bool(template))


def objection_to_messages(service: Service, flags: Mapping[str, Any]) -> str | None:
    """Why the chat template of what a service serves does not take one message of a user; None if it does.

    Raises:
        ConfigError: the template that it is given cannot be read; names the key.
    """
    if service.kind == "frontend" or flags["model"] == DEMO_MODEL:
        return None
    custom = flags.get("custom_jinja_template")
    try:
        writer = message_writer(Path(flags["model"]), None if custom is None else Path(str(custom)))
    except ConfigError as error:
        raise ConfigError(f"{service.name}.{error}") from error
    return None if writer is None else writer.objection()
