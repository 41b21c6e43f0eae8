"""The last layer of a model computes only for the tokens whose logits are wanted: of others nobody wants more than KV.

That is one token of each prompt that ends in a wave, and none of those that go on: of the last layer, a prefill has
next to nothing to compute but keys and values.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from wavepp_worker.model.known_code import is_llama_layer
from wavepp_worker.model.kv.wave_layout import current_wave
from wavepp_worker.model.layer_calls import LayerCalls


def can_be_trimmed(layers: nn.ModuleList, calls: LayerCalls) -> bool:
    """Whether the last of a model's layers is one that ``trim`` knows, and used as it has to be.

    Args:
        calls: of a forward of the model.
    """
    return is_llama_layer(layers[-1]) and calls.is_normed(len(layers) - 1)


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
