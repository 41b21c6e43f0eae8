from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.kv.wave_layout import lay_out_wave
from wavepp_worker.model.kv.window_layout import WindowLayout, token_slots
from wavepp_worker.model.stage import Chunk

CPU = torch.device("cpu")
FIRST, SECOND = torch.tensor([7, 2]), torch.tensor([5])


def test_tokens_lie_where_the_block_table_says() -> None:
    assert token_slots(FIRST, 2, 7, 4).tolist() == [30, 31, 8, 9, 10]
    with pytest.raises(WaveppError, match=r"tokens \[0, 9\) need 3 blocks of 4 but the block table has 2"):
        token_slots(FIRST, 0, 9, 4)


def test_without_a_prefix_nothing_is_read() -> None:
    assert (
        lay_out_wave([Chunk(0, 5, FIRST, True), Chunk(0, 1, SECOND, True)], 4, CPU).window(0, 0).read_slots
        is None
    )


def test_a_decode_wave_is_padded_with_each_requests_own_first_token_and_masked() -> None:
    wave = lay_out_wave([Chunk(4, 1, FIRST, True), Chunk(1, 1, SECOND, True)], 4, CPU)
    assert wave.decode
    assert wave.window(0, 0).read_slots is not None
    assert wave.window(0, 0).read_slots.view(2, 5).tolist() == [[28, 29, 30, 31, 8], [20, 21, 20, 20, 20]]
    mask = wave.window(0, 0).decode_mask(None)
    assert mask is not None
    assert mask.view(2, 5).int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    windowed = wave.window(0, 0).decode_mask(3)
    assert windowed is not None
    assert windowed.view(2, 5).int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]
    same = lay_out_wave([Chunk(1, 1, FIRST, True), Chunk(1, 1, SECOND, True)], 4, CPU)
    assert same.window(0, 0).decode_mask(None) is None, "everything is attended"


def test_of_a_window_the_blocks_are_read_in_which_a_token_is_seen() -> None:
    """As kernels take them that read pages in place; what a window has passed is no block any more."""
    tables = [torch.tensor([-1, -1, 7, 5]), torch.tensor([3]), torch.tensor([9, 2])]
    starts, lengths = [11, 0, 4], [3, 4, 1]
    layout = WindowLayout(tables, starts, lengths, 3, False, 4, torch.device("cpu"))
    assert layout.firsts == [9, 0, 2]
    assert layout.read_blocks.tolist() == [7, 5, 3, 9, 2]
    assert layout.read_blocks.dtype == torch.int32
    queries, blocks, last = layout.host_block_bounds()
    assert (queries.tolist(), blocks.tolist(), last.tolist()) == ([0, 3, 7, 8], [0, 2, 3, 5], [2, 4, 1])
    assert {each.dtype for each in (queries, blocks, last)} == {torch.int32}
