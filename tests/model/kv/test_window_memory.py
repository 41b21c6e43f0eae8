from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.model.kv.window_memory import WindowMemory

BLOCKS, BLOCK = 9, 4
CPU = torch.device("cpu")
BLOCK_BYTES = BLOCK * (2 * 3 * 4 + 5 * 2 + 7)


def pools(seed: int) -> list[torch.Tensor]:
    """Of unlike heads and dtypes."""
    make = torch.Generator().manual_seed(seed)
    rows = BLOCKS * BLOCK
    return [
        torch.randn(rows, 2, 3, generator=make),
        torch.randn(rows, 1, 5, generator=make).bfloat16(),
        torch.randint(0, 256, (rows, 1, 7), generator=make, dtype=torch.uint8),
    ]


@given(st.permutations(range(BLOCKS)), st.permutations(range(BLOCKS)), st.integers(0, BLOCKS))
def test_blocks_go_out_and_in_under_other_numbers(left: list[int], right: list[int], count: int) -> None:
    """Whole, of every pool, and no other block changes."""
    here, there, before = pools(1), pools(2), pools(2)
    source, target = WindowMemory(here, BLOCKS, CPU), WindowMemory(there, BLOCKS, CPU)
    payload = source.export_blocks(torch.tensor(left[:count], dtype=torch.int64))
    assert payload.shape == (count, source.block_bytes) == (count, BLOCK_BYTES)
    target.import_blocks(torch.tensor(right[:count], dtype=torch.int64), payload)
    for ours, theirs, old in zip(here, there, before, strict=True):
        expected = old.view(BLOCKS, -1).clone()
        for a, b in zip(left[:count], right[:count], strict=True):
            expected[b] = ours.view(BLOCKS, -1)[a]
        assert torch.equal(theirs.view(BLOCKS, -1), expected)
