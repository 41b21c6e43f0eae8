"""Which of transformers' modules compute what a known one does: told by their code, not by names or models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torch import nn

_LONGEST_NAME = 60
"""Characters; a longer constant of a function is its description."""


def computes_as(module: nn.Module, known: type[nn.Module]) -> bool:
    """Whether a module's ``forward`` has the code of that of ``known``."""
    return same_code(type(module).forward, known.forward)


def is_llama_layer(layer: nn.Module) -> bool:
    """Whether a decoder layer adds attention and then ``mlp``, a feed-forward part, each behind a norm."""
    # Imported late, as it takes seconds, and to read a configuration needs no model's code.
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return computes_as(layer, LlamaDecoderLayer)


def same_code(function: Callable[..., Any] | None, known: Callable[..., Any]) -> bool:
    """Whether two functions have one code, whatever they say of it, and are wrapped in the same."""
    return [*_essences(function)] == [*_essences(known)]


def _essences(function: Callable[..., Any] | None) -> Iterator[tuple[Any, ...]]:
    """Of a function, and of all that it wraps."""
    while function is not None:
        code: CodeType | None = getattr(function, "__code__", None)
        if code is None:
            return
        constants = [
            each for each in code.co_consts if not isinstance(each, str) or len(each) < _LONGEST_NAME
        ]
        yield code.co_code, code.co_names, code.co_varnames, constants
        function = getattr(function, "__wrapped__", None)
