from __future__ import annotations

import pytest
import torch
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.wave_layout import lay_out_wave
from wavepp_worker.model.window_layout import token_slots

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
