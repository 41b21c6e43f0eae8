"""For what a worker's model is offered: chats, completions, or both."""

from __future__ import annotations

import argparse
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import has_chat_template

DEFAULT_ENDPOINT_TYPES = "chat,completions"
"""Dynamo's."""


def check_endpoint_types(value: str) -> None:
    """Refuse what Dynamo would, which finds out when the model is loaded.

    Raises:
        ConfigError: names the flag.
    """
    from dynamo.common.utils.endpoint_types import parse_endpoint_types

    try:
        parse_endpoint_types(value)
    except ValueError as error:
        raise ConfigError(
            f"--endpoint-types: {value!r} is refused: {error}; give chat, completions or both"
        ) from error


def with_endpoint_types(options: argparse.Namespace, model: Path) -> argparse.Namespace:
    """The options of a worker whose model has no chat template serve completions alone.

    Dynamo's frontend would not list such a model at all if it were offered for chats.
    """
    chats = options.custom_jinja_template or has_chat_template(model)
    if chats or options.endpoint_types != DEFAULT_ENDPOINT_TYPES:
        return options
    return argparse.Namespace(**{**vars(options), "endpoint_types": "completions"})
