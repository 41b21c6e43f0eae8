"""What no tiny model has: powers of two, groups in another order, shapes that do not fit."""

from __future__ import annotations

import pytest
import torch
from wavepp_worker.model.dequantise import packed, scaled


@pytest.mark.parametrize(
    ("scale", "block", "first_row"),
    [
        (torch.tensor(2.0), None, [2, 2, 2, 2]),
        (torch.tensor([3.0, 1.0]), None, [3, 3, 3, 3]),
        (torch.tensor([[3.0], [1.0]]), None, [3, 3, 3, 3]),
        (torch.tensor([[3.0, 1.0]]), None, [3, 3, 1, 1]),
        (torch.tensor([[3.0, 1.0]]), (2, 3), [3, 3, 3, 1]),
        # A block that the file was not made with.
        (torch.tensor([[3.0, 1.0]]), (2, 1), [3, 3, 1, 1]),
        (torch.tensor([[128, 126]], dtype=torch.uint8), None, [2, 2, 0.5, 0.5]),
    ],
)
def test_scales_are_of_blocks(
    scale: torch.Tensor, block: tuple[int, int] | None, first_row: list[float]
) -> None:
    assert scaled(torch.ones(2, 4), scale, block=block)[0].tolist() == first_row


def test_scales_that_fit_no_block_are_an_error() -> None:
    with pytest.raises(ValueError, match="4 rows or columns do not divide into 3 equal blocks"):
        scaled(torch.ones(2, 4), torch.ones(1, 3))


def test_whole_numbers_have_a_zero_point() -> None:
    weight = torch.tensor([[5, 6], [7, 8]], dtype=torch.int8)
    zero = torch.tensor([[5], [8]], dtype=torch.int8)
    assert scaled(weight, torch.tensor([[2.0], [1.0]]), zero).tolist() == [[0, 2], [-1, 0]]


def test_columns_are_of_the_group_that_is_said() -> None:
    # Eight columns of 8 bits, -128 added to each: 1 to 8.
    words = torch.tensor([[0x84838281, 0x88878685]]).to(torch.int32)
    scale, groups = torch.tensor([[1.0, 10.0]]), torch.tensor([0, 1] * 4)
    assert packed(words, scale, (1, 8), 8, groups=groups).tolist() == [[1, 20, 3, 40, 5, 60, 7, 80]]
    assert packed(words, scale, (1, 8), 8).tolist() == [[1, 2, 3, 4, 50, 60, 70, 80]]
    assert packed(words, torch.tensor([2.0]), (1, 6), 8).tolist() == [[2, 4, 6, 8, 10, 12]]
