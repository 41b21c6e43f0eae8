"""What no tiny model has: powers of two, groups in another order, shapes that do not fit."""

from __future__ import annotations

import re

import pytest
import torch
from wavepp_worker.model.files.dequantise import awq, packed, scaled
from wavepp_worker.model.files.quantisation import ROW


@pytest.mark.parametrize(
    ("scale", "block", "first_row"),
    [
        (torch.tensor(2.0), (0, 0), [2, 2, 2, 2]),
        (torch.tensor([[2.0]]), (0, 0), [2, 2, 2, 2]),
        (torch.tensor([3.0, 1.0]), (1, 0), [3, 3, 3, 3]),
        (torch.tensor([[3.0], [1.0]]), (1, 0), [3, 3, 3, 3]),
        (torch.tensor([[3.0, 1.0], [1.0, 1.0]]), (1, 2), [3, 3, 1, 1]),
        (torch.tensor([[3.0, 1.0]]), (2, 3), [3, 3, 3, 1]),
        (torch.tensor([[3.0, 1.0]]), (5, 3), [3, 3, 3, 1]),
        (torch.tensor([[128, 126]], dtype=torch.uint8), (2, 2), [2, 2, 0.5, 0.5]),
    ],
)
def test_scales_are_of_the_blocks_that_are_said(
    scale: torch.Tensor, block: tuple[int, int], first_row: list[float]
) -> None:
    # Of several ways, a weight's scales are in one.
    assert scaled(torch.ones(2, 4), scale, None, ((7, 1), block))[0].tolist() == first_row


@pytest.mark.parametrize(
    ("scale", "block"),
    [
        ((1, 3), (2, 3)),
        # As many as would divide the weight evenly, but another number than the scheme says.
        ((1, 2), (2, 1)),
        ((2, 1), (0, 0)),
        ((2, 2), (1, 0)),
        ((2,), (1, 2)),
        ((1, 1, 2), (2, 2)),
        ((0, 2), (2, 2)),
        # Groups divide a row.
        ((2, 2), (1, 3)),
    ],
)
def test_scales_of_another_shape_are_an_error(scale: tuple[int, ...], block: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"scales are {list(scale)}, where [")):
        scaled(torch.ones(2, 4), torch.ones(scale), None, (block,))


def test_whole_numbers_have_a_zero_point() -> None:
    weight = torch.tensor([[5, 6], [7, 8]], dtype=torch.int8)
    zero = torch.tensor([[5], [8]], dtype=torch.int8)
    scale = torch.tensor([[2.0], [1.0]])
    assert scaled(weight, scale, zero, (ROW,)).tolist() == [[0, 2], [-1, 0]]
    with pytest.raises(ValueError, match=re.escape("zero points are [1, 1] of int8, where [2, 1] belong")):
        scaled(weight, scale, zero[:1], (ROW,))


# Eight columns of 8 bits, -128 added to each: 1 to 8.
WORDS = torch.tensor([[0x84838281, 0x88878685]]).to(torch.int32)


def test_columns_are_of_the_group_that_is_said() -> None:
    scale, groups = torch.tensor([[1.0, 10.0]]), torch.tensor([0, 1] * 4)
    fours = ((1, 4),)
    assert packed(WORDS, scale, (1, 8), 8, None, groups, fours).tolist() == [[1, 20, 3, 40, 5, 60, 7, 80]]
    assert packed(WORDS, scale, (1, 8), 8, None, None, fours).tolist() == [[1, 2, 3, 4, 50, 60, 70, 80]]
    assert packed(WORDS, torch.tensor([2.0]), (1, 6), 8, None, None, (ROW,)).tolist() == [
        [2, 4, 6, 8, 10, 12]
    ]


@pytest.mark.parametrize(
    ("words", "shape", "zero", "groups", "says"),
    [
        (WORDS, (1, 9), None, None, "words are [1, 2] of int32, where [1, 3] of int32 belong"),
        (WORDS.long(), (1, 8), None, None, "words are [1, 2] of int64, where [1, 2] of int32 belong"),
        (WORDS, (1, 8), WORDS, torch.zeros(8), ""),
        (WORDS, (1, 8), WORDS[:, :1], None, "zero points are [1, 1] of int32, where [1, 2] of int32 belong"),
        (WORDS, (1, 8), None, torch.zeros(7), "groups of columns are [7] of float32, where [8] belong"),
        (WORDS, (1, 8), None, torch.full((8,), -1), "groups of columns are not numbers below 2"),
        (WORDS, (1, 8), None, torch.full((8,), 2), "groups of columns are not numbers below 2"),
    ],
)
def test_what_is_packed_has_the_shapes_that_are_said(
    words: torch.Tensor,
    shape: tuple[int, int],
    zero: torch.Tensor | None,
    groups: torch.Tensor | None,
    says: str,
) -> None:
    scale = torch.ones(1, 2)
    if not says:
        assert packed(words, scale, shape, 8, zero, groups, ((1, 4),)).shape == shape
        return
    with pytest.raises(ValueError, match=re.escape(says)):
        packed(words, scale, shape, 8, zero, groups, ((1, 4),))


def test_awq_has_the_shapes_that_are_said() -> None:
    words, zeros = torch.zeros(8, 2, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    assert awq(words, torch.ones(2, 16), zeros, ((1, 4),)).shape == (16, 8)
    for scale, zero, size, says in (
        (
            torch.ones(2, 16),
            zeros,
            2,
            "scales are [16, 2], where [16, 4] belong to [16, 8] in blocks of 1 rows",
        ),
        (torch.ones(2, 8), zeros, 4, "scales are [8, 2]"),
        (torch.ones(16), zeros, 4, "scales are [16]"),
        (torch.ones(2, 16), zeros[:1], 4, "zero points are [1, 2] of int32, where [2, 2] of int32 belong"),
        (torch.ones(2, 16), zeros.float(), 4, "zero points are [2, 2] of float32"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            awq(words, scale, zero, ((1, size),))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_scales_are_finite_numbers(scale: float) -> None:
    zeros = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="some scales are infinite or no numbers"):
        scaled(torch.ones(1, 1), torch.tensor(scale), None, ((0, 0),))
    with pytest.raises(ValueError, match="some scales are infinite or no numbers"):
        packed(WORDS, torch.tensor([scale]), (1, 8), 8, None, None, (ROW,))
    with pytest.raises(ValueError, match="some scales are infinite or no numbers"):
        awq(torch.zeros(8, 2, dtype=torch.int32), torch.full((1, 16), scale), zeros, ((1, 8),))
    with pytest.raises(ValueError, match="some scales are infinite or no numbers"):
        scaled(torch.ones(1, 1), torch.tensor(255, dtype=torch.uint8), None, ((0, 0),))
