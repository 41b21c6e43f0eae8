"""What is noted of a model's decoder layers while it computes."""

from __future__ import annotations

import torch
from torch import nn
from wavepp_worker.model.layer_calls import layers_noted


class _Adds(nn.Module):
    def forward(self, hidden: torch.Tensor, position_embeddings: object = None) -> torch.Tensor:
        del position_embeddings
        return hidden + 1


def test_layers_follow_each_other_only_if_nothing_happens_between_them() -> None:
    layers, norm = nn.ModuleList(_Adds() for _ in range(6)), nn.Identity()
    positions, others = object(), object()
    with layers_noted(layers, norm) as calls:
        hidden = layers[0](torch.zeros(1), position_embeddings=positions)
        hidden = layers[1](hidden, position_embeddings=positions)
        hidden = layers[2](2 * hidden, position_embeddings=positions)
        hidden = layers[3](hidden, position_embeddings=others)
        hidden = layers[4](hidden, others)
        norm(layers[5](hidden))
    assert [number for number in range(6) if calls.follows(number)] == [1]
    assert [number for number in range(6) if calls.only(number) is None] == [4], (
        "it was given two by their places"
    )
    assert [number for number in range(6) if calls.is_normed(number)] == [5]
    layers[1](hidden, position_embeddings=others)
    assert calls.only(1) is not None, "nothing is noted any more"


def test_a_layer_that_is_called_twice_has_no_call_of_its_own() -> None:
    layers, norm = nn.ModuleList([_Adds()]), nn.Identity()
    with layers_noted(layers, norm) as calls:
        norm(layers[0](layers[0](torch.zeros(1))))
    assert calls.only(0) is None
    assert not calls.is_normed(0)
