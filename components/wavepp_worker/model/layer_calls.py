"""What a model does with its decoder layers: what each is called with in a forward, and who takes its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn


@dataclass
class LayerCall:
    """One call of a decoder layer.

    Attributes:
        given: its positional arguments.
        named: the others.
        answer: what it returned.
    """

    given: tuple[Any, ...]
    named: dict[str, Any]
    answer: Any = None


@dataclass
class LayerCalls:
    """The calls of a model's decoder layers in one forward.

    Attributes:
        of: by the layer's number, in order.
        normed: what the norm behind them was given.
    """

    of: dict[int, list[LayerCall]] = field(default_factory=dict)
    normed: list[Any] = field(default_factory=list)

    def only(self, number: int) -> LayerCall | None:
        """The call of a layer that was called once, with its hidden states alone by place; None otherwise."""
        calls = self.of.get(number, [])
        return calls[0] if len(calls) == 1 and len(calls[0].given) == 1 else None

    def follows(self, number: int) -> bool:
        """Whether a layer got what the one before answered, as it was, and the same cosines and sines of positions."""
        before, own = self.only(number - 1), self.only(number)
        if before is None or own is None:
            return False
        positions, others = own.named.get("position_embeddings"), before.named.get("position_embeddings")
        return own.given[0] is before.answer and positions is others is not None

    def is_normed(self, number: int) -> bool:
        """Whether what a layer answered, as it was, is all that the norm was given, once."""
        own = self.only(number)
        return own is not None and len(self.normed) == 1 and own.answer is self.normed[0]


@contextlib.contextmanager
def layers_noted(layers: nn.ModuleList, norm: nn.Module) -> Iterator[LayerCalls]:
    """Note, while a model computes, the calls of its decoder layers.

    Args:
        norm: what is to take the last one's answer.
    """
    calls = LayerCalls()

    def note(number: int, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.of.setdefault(number, []).append(LayerCall(given, named))

    def note_answer(number: int, _: nn.Module, __: tuple[Any, ...], answer: Any) -> None:
        calls.of[number][-1].answer = answer

    hooks = [norm.register_forward_pre_hook(lambda _, given: calls.normed.append(given[0]))]
    for number, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(partial(note, number), with_kwargs=True))
        hooks.append(layer.register_forward_hook(partial(note_answer, number)))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
