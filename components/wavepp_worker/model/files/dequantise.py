"""Quantised tensors as the plain weights that they stand for, computed in float32.

What belongs together has exactly the shapes that the scheme says; all others are a ValueError that says which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wavepp_worker.model.files.quantisation import Block

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in 32 bits AWQ keeps the first, second, ... of eight columns."""


def scaled(
    weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, blocks: Sequence[Block]
) -> torch.Tensor:
    """``weight`` ``[..., rows, columns]`` times its scales.

    Args:
        scale: one for each block, ``[..., row blocks, column blocks]``; powers of 2 if bytes. One of the whole weight
            may be of any shape of one number, and those of whole rows ``[rows]``.
        zero: what stands for 0, in the shape of ``scale``.
        blocks: that the scales may be of.
    """
    block = _block(weight.shape, scale, blocks)
    factors = _finite((scale.float() - 127).exp2() if scale.dtype is torch.uint8 else scale.float())
    numbers = weight.float()
    if zero is not None:
        _require("zero points", zero, scale.shape)
        numbers = numbers - _spread(zero.float(), weight.shape, block)
    return numbers * _spread(factors, weight.shape, block)


def packed(
    words: torch.Tensor,
    scale: torch.Tensor,
    shape: tuple[int, int],
    bits: int,
    zero: torch.Tensor | None,
    groups: torch.Tensor | None,
    blocks: Sequence[Block],
) -> torch.Tensor:
    """A weight ``shape`` whose rows are packed into int32 ``words`` ``[rows, words]``, low bits first.

    Args:
        scale: ``[rows, groups of columns]``, or of whole rows ``[rows]`` or the whole weight ``[1]``.
        bits: of a number, which is stored with ``2 ** (bits - 1)`` added.
        zero: what stands for 0, packed along the rows: ``[words, groups of columns]``; without, 0.
        groups: ``[columns]``, the group of each column; without, groups are of equal columns in a row.
        blocks: that the scales may be of.
    """
    rows, columns = shape
    each = 32 // bits
    _require("words", words, (rows, -(-columns // each)), torch.int32)
    block = _block(torch.Size(shape), scale, blocks)
    spread = _spread(_finite(scale.float()), torch.Size(shape), block, groups)
    numbers = _unpack(words, bits)[:, :columns].float()
    if zero is not None:
        of_rows = rows if block[0] else 1
        of_columns = 1 if not block[1] else -(-columns // block[1])
        _require("zero points", zero, (-(-of_rows // each), of_columns), torch.int32)
        unpacked = _unpack(zero.T.contiguous(), bits).T[:of_rows].float()
        numbers -= _spread(unpacked, torch.Size(shape), block, groups)
    return numbers * spread


def awq(
    words: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor, blocks: Sequence[Block]
) -> torch.Tensor:
    """A weight ``[rows, columns]`` that AWQ keeps transposed, eight rows in an int32.

    Args:
        words: ``[columns, rows / 8]``.
        scale: ``[groups of columns, rows]``.
        zeros: ``[groups of columns, rows / 8]``, what stands for 0.
        blocks: that the scales are of.
    """
    columns, eighths = words.shape
    _require("words", words, words.shape, torch.int32)
    if scale.ndim != 2:
        raise ValueError(f"scales are {list(scale.shape)}, where groups of columns and rows belong")
    block = _block(torch.Size((8 * eighths, columns)), scale.T, blocks)
    _require("zero points", zeros, (scale.shape[0], eighths), torch.int32)
    size = block[1] or columns
    numbers = _awq_unpack(words).float() - _awq_unpack(zeros).float().repeat_interleave(size, 0)[:columns]
    return (numbers * _finite(scale.float()).repeat_interleave(size, 0)[:columns]).T.contiguous()


def _block(shape: torch.Size, scale: torch.Tensor, blocks: Sequence[Block]) -> Block:
    """Which of ``blocks`` the scales of a weight are of."""
    *many, rows, columns = shape
    belong = []
    for block in blocks:
        high = -(-rows // block[0]) if block[0] else 1
        wide = -(-columns // block[1]) if block[1] else 1
        whole = block[0] == 1 and block[1] and columns > block[1] and columns % block[1]
        exact = tuple(scale.shape) == (*many, high, wide) and not whole
        of_rows = block == (1, 0) and tuple(scale.shape) == (*many, rows)
        of_all = block == (0, 0) and scale.numel() == 1
        if exact or of_rows or of_all:
            return block
        belong.append([*many, high, wide])
    raise ValueError(
        f"scales are {list(scale.shape)}, where {' or '.join(map(str, belong))} belong to {list(shape)} in blocks of "
        f"{' or '.join(map(_words, blocks))}"
    )


def _finite(scale: torch.Tensor) -> torch.Tensor:
    if not scale.isfinite().all():
        raise ValueError("some scales are infinite or no numbers")
    return scale


def _words(block: Block) -> str:
    rows, columns = (size or "all" for size in block)
    return f"{rows} rows and {columns} columns"


def _require(what: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> None:
    if tuple(tensor.shape) != tuple(shape) or dtype not in (None, tensor.dtype):
        kind = "" if dtype is None else f" of {str(dtype).removeprefix('torch.')}"
        raise ValueError(
            f"{what} are {list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}, where "
            f"{list(shape)}{kind} belong"
        )


def _spread(
    scale: torch.Tensor, shape: torch.Size, block: Block, groups: torch.Tensor | None = None
) -> torch.Tensor:
    """Scales of blocks as something that a weight of ``shape`` can be multiplied with."""
    if scale.numel() == 1:
        return scale.reshape(())
    rows, columns = shape[-2:]
    if scale.ndim < len(shape):
        scale = scale[..., None]
    if block[0] > 1:
        scale = scale.repeat_interleave(block[0], -2)[..., :rows, :]
    if groups is not None:
        _require("groups of columns", groups, (columns,))
        if columns and not 0 <= int(groups.min()) <= int(groups.max()) < scale.shape[-1]:
            raise ValueError(f"groups of columns are not numbers below {scale.shape[-1]}")
        return scale[..., groups.long()]
    return scale.repeat_interleave(block[1], -1)[..., :columns] if scale.shape[-1] > 1 else scale


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """``[rows, words]`` as signed numbers ``[rows, words * (32 // bits)]``."""
    shifts = torch.arange(0, 32 // bits * bits, bits, dtype=torch.int32)
    numbers = (words[..., None] >> shifts) & (2**bits - 1)
    return numbers.flatten(-2) - 2 ** (bits - 1)


def _awq_unpack(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.tensor(_AWQ_ORDER, dtype=torch.int32) * 4
    return ((words[..., None] >> shifts) & 15).flatten(-2)
