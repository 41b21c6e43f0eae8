from __future__ import annotations

import ctypes
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import HandoffMismatch, WaveppError
from wavepp_worker.model.kv import paged_kv
from wavepp_worker.model.kv.paged_kv import TorchPagedKV

from tests.support.fake_cuda import GPU
from tests.support.kept_tensors import kept

SHAPES = [
    kept((2, 4), (2, 4)),
    kept((1, 6), (1, 2)),
    kept((3, 4), (3, 4)),
    kept((2, 4), (2, 4)),
]
TABLE_SEED = 3


def make(layers: range, block: int, blocks: int = 40, dtype: torch.dtype = torch.float32) -> TorchPagedKV:
    return TorchPagedKV(layers, [SHAPES[i] for i in layers], blocks, block, dtype, torch.device("cpu"))


def fill(kv: TorchPagedKV) -> None:
    generator = torch.Generator().manual_seed(1)
    for layer in kv.layers:
        for pool in kv.pools(layer):
            pool.copy_(torch.randn(pool.shape, generator=generator))


def table(kv: TorchPagedKV, tokens: int, seed: int = TABLE_SEED) -> torch.Tensor:
    order = torch.randperm(kv.num_blocks, generator=torch.Generator().manual_seed(seed))
    return order[: -(-tokens // kv.block_size)]


def rows(kv: TorchPagedKV, layer: int, blocks: torch.Tensor, start: int, end: int) -> list[torch.Tensor]:
    """Keys and values of tokens ``[start, end)``, found one by one."""
    slots = [int(blocks[t // kv.block_size]) * kv.block_size + t % kv.block_size for t in range(start, end)]
    return [torch.stack([pool[s] for s in slots]) for pool in kv.pools(layer)]


def test_export_order_is_layer_then_keys_then_values() -> None:
    kv = make(range(1, 3), block=4)
    fill(kv)
    blocks = table(kv, 11)
    payload = kv.export_tokens(blocks, 2, 11)
    wanted = [part.flatten() for layer in kv.layers for part in rows(kv, layer, blocks, 2, 11)]
    assert torch.equal(payload.view(torch.float32), torch.cat(wanted))
    assert kv.bytes_per_token == (6 + 2 + 12 + 12) * 4
    assert payload.numel() == kv.bytes_per_token * 9


@pytest.mark.parametrize("device", [torch.device("cpu"), GPU])
def test_what_leaves_a_gpu_is_page_locked(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """To other memory each layer's copy would have the host wait for the device; only for a CPU it costs nothing."""
    kv, locked, empty = make(range(1, 3), block=4), [], torch.empty
    fill(kv)
    wanted = kv.export_tokens(table(kv, 11), 2, 11)

    def noted(*size: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        locked.append(pin_memory)
        return empty(*size, **named)

    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(paged_kv, "to_device", lambda tensor, device: tensor)
    kv.device = device
    assert torch.equal(kv.export_tokens(table(kv, 11), 2, 11), wanted)
    assert locked == [device == GPU]


@settings(deadline=None, max_examples=40)
@given(
    blocks=st.tuples(st.sampled_from([1, 3, 4, 16, 32]), st.sampled_from([1, 2, 5, 16])),
    cuts=st.lists(st.integers(0, 37), max_size=3),
    split=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_roundtrip_between_block_sizes_and_layer_ranges(
    blocks: tuple[int, int], cuts: list[int], split: int, dtype: torch.dtype
) -> None:
    tokens = 37
    sources = [make(r, blocks[0], dtype=dtype) for r in (range(split), range(split, 4))]
    target = make(range(4), blocks[1], dtype=dtype)
    there = table(target, tokens, seed=9)
    bounds = sorted({0, *cuts, tokens})
    for source in sources:
        fill(source)
        here = table(source, tokens)
        for start, end in itertools.pairwise(bounds):
            target.import_tokens(there, start, end, source.layers, source.export_tokens(here, start, end))
        for layer in source.layers:
            for ours, theirs in zip(
                rows(source, layer, here, 0, tokens), rows(target, layer, there, 0, tokens), strict=True
            ):
                assert torch.equal(ours, theirs)
    used = {int(b) for b in there}
    for layer in range(4):
        for pool in target.pools(layer):
            for block in set(range(target.num_blocks)) - used:
                assert not pool[block * target.block_size : (block + 1) * target.block_size].any()


def test_regions_are_where_the_blocks_are() -> None:
    kv = make(range(0, 4), block=4, dtype=torch.bfloat16)
    fill(kv)
    block = 7
    regions = kv.block_regions()
    found = [*zip(regions.addresses(np.array([[block]]))[0].tolist(), regions.sizes.tolist(), strict=True)]
    seen = b"".join(ctypes.string_at(address, size) for address, size in found)
    exported = kv.export_tokens(torch.tensor([block]), 0, 4)
    assert seen == exported.numpy().tobytes()
    for address, size in found:
        assert any(a <= address and address + size <= a + n for a, n in kv.regions())
    assert sum(n for _, n in kv.regions()) == kv.num_blocks * kv.block_size * kv.bytes_per_token


def test_wrong_imports_are_refused() -> None:
    kv = make(range(1, 3), block=4)
    blocks = table(kv, 8)
    payload = kv.export_tokens(blocks, 0, 8)
    with pytest.raises(HandoffMismatch, match="layers 0 to 2 but this rank holds 1 to 2"):
        kv.import_tokens(blocks, 0, 8, range(0, 3), payload)
    with pytest.raises(HandoffMismatch, match="take 1024 bytes"):
        kv.import_tokens(blocks, 0, 8, range(1, 3), payload[:-4])
    with pytest.raises(WaveppError, match="the block table has 2"):
        kv.export_tokens(blocks, 0, 9)
    with pytest.raises(WaveppError, match="block 40 does not exist"):
        kv.block_regions().addresses(np.array([[40]]))


def test_of_what_a_window_has_passed_nothing_is_sent() -> None:
    """By layers with a window, whose pools may be smaller, beside one that keeps everything."""
    caches = [SHAPES[0], dataclasses.replace(SHAPES[3], policy="sliding", span=5)]
    given = (caches, 20, 4, torch.float32, torch.device("cpu"), 0)
    source = TorchPagedKV(range(2), *given, lambda span: 2 * span)
    target = TorchPagedKV(range(2), *given, None)
    fill(source)
    assert [len(source.pools(layer)[0]) for layer in range(2)] == [4 * 20, 4 * 10]
    here = torch.tensor([[7, 3, 19, 0], [-1, -1, 9, 4]])
    there = torch.tensor([5, 1, 2, 8])
    for start, end in ((0, 6), (6, 10), (10, 15)):
        payload = source.export_tokens(here, start, end)
        windowed = max(0, end - max(start, 8))
        assert len(payload) == 4 * 16 * (end - start + windowed)
        target.import_tokens(there, start, end, range(2), payload, {5: 8})
    for layer, first in ((0, 0), (1, 8)):
        ours = rows(source, layer, here[layer], first, 15)
        assert all(map(torch.equal, ours, rows(target, layer, there, first, 15)))
    with pytest.raises(HandoffMismatch, match="take 256 bytes but the payload has 192"):
        target.import_tokens(there, 9, 11, range(2), torch.empty(192, dtype=torch.uint8), {5: 8})
