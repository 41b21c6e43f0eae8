from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import HandoffMismatch
from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache
from wavepp_worker.model.kv.state_memory import StateMemory


def state(matrices: tuple[int, ...], conv: tuple[int, ...]) -> LayerCache:
    return LayerCache(
        "test", "recurrent", (CachedTensor("state", matrices, "float32"), CachedTensor("conv", conv))
    )


SHAPES = {0: state((2, 3, 3), (5, 3)), 2: state((2, 3, 3), (5, 3)), 3: state((1, 1, 1), (1, 3))}


def test_what_a_rank_has_in_a_state_is_a_part_of_what_all_layers_have() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        StateMemory({n: SHAPES[n] for n in layers if n in SHAPES}, 4, torch.bfloat16, torch.device("cpu"))
        for layers in (range(0, 2), range(2, 4))
    ]
    whole = StateMemory(SHAPES, 3, torch.bfloat16, torch.device("cpu"))
    written = {
        layer: [torch.randn(1, *tensor.shape, generator=generator) for tensor in cache.tensors]
        for layer, cache in SHAPES.items()
    }
    for layers, part in zip((range(0, 2), range(2, 4)), parts, strict=True):
        for layer in layers:
            if layer in SHAPES:
                part.store(layer, [3], written[layer])
        payload = part.export_blocks(torch.tensor([3]))[0]
        whole.import_state(1, layers, payload)
    for layer, (recurrent, conv) in written.items():
        found = whole.load(layer, [1])
        assert torch.equal(found[0], recurrent)
        assert torch.equal(found[1], conv.bfloat16())
    with pytest.raises(HandoffMismatch, match="takes 224 bytes but the payload has 3"):
        whole.import_state(1, range(0, 3), torch.zeros(3, dtype=torch.uint8))
