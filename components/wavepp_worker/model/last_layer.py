"""The last layer of a model computes only for the tokens whose logits are wanted: of others nobody wants more than KV.

That is one token of each prompt that ends in a wave, and none of those that go on: of the last layer, a prefill has
next to nothing to compute but keys and values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from wavepp_worker.model.known_code import computes_as
from wavepp_worker.model.wave_layout import current_wave


def knows_how_to_trim(layer: nn.Module) -> bool:
    """Whether a layer adds attention and then ``mlp``, a feed-forward part, each behind a norm."""
    # Imported late, as it takes seconds, and to read a configuration needs no model's code.
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return computes_as(layer, LlamaDecoderLayer)


@contextlib.contextmanager
def can_be_trimmed(layer: nn.Module, norm: nn.Module) -> Iterator[Callable[[], bool]]:
    """While a model computes, look whether its last layer is one that ``trim`` knows, and used as it has to be.

    Args:
        norm: what is to take the layer's answer, as it is.

    Yields:
        What tells, after one forward: the layer must have been called once.
    """
    answers: list[Any] = []
    taken: list[Any] = []
    hooks = (
        layer.register_forward_hook(lambda _, __, answer: answers.append(answer)),
        norm.register_forward_pre_hook(lambda _, given: taken.append(given[0])),
    )
    try:
        yield lambda: knows_how_to_trim(layer) and len(answers) == len(taken) == 1 and answers[0] is taken[0]
    finally:
        for hook in hooks:
            hook.remove()


def trim(layer: nn.Module) -> None:
    """Have the last layer answer ``[1, wanted, hidden]`` in waves that are ``trimmed``."""
    layer.forward = partial(_forward, layer)


def _forward(layer: Any, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    wave = current_wave()
    if not wave.trimmed:
        whole: torch.Tensor = type(layer).forward(layer, hidden_states, **kwargs)
        return whole
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs)
    if not wave.wanting:
        # Experts need not put up with no token at all.
        return hidden_states[:, :0]
    if attended.shape[1] == wave.tokens:
        attended = attended[:, wave.wanted]
    hidden: torch.Tensor = hidden_states[:, wave.wanted] + attended
    result: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return result
