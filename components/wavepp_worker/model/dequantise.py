"""Quantised tensors as the plain weights that they stand for, computed in float32."""

from __future__ import annotations

import torch

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in 32 bits AWQ keeps the first, second, ... of eight columns."""


def scaled(
    weight: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor | None = None,
    block: tuple[int, int] | None = None,
) -> torch.Tensor:
    """``weight`` ``[..., rows, columns]`` times its scales.

    Args:
        scale: one, one for each row, or one for each block, ``[..., row blocks, column blocks]``; powers of 2 if bytes.
        zero: what stands for 0, in the shape of ``scale``.
        block: rows and columns of a block; without, as many as divide the weight evenly.

    Raises:
        ValueError: there are as many scales as fit no block.
    """
    rows, columns = weight.shape[-2:]
    factors = (scale.float() - 127).exp2() if scale.dtype is torch.uint8 else scale.float()
    numbers = weight.float()
    if zero is not None:
        numbers = numbers - _spread(zero.float(), rows, columns, block)
    return numbers * _spread(factors, rows, columns, block)


def packed(
    words: torch.Tensor,
    scale: torch.Tensor,
    shape: tuple[int, int],
    bits: int,
    zero: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
) -> torch.Tensor:
    """A weight ``shape`` whose rows are packed into int32 ``words`` ``[rows, words]``, low bits first.

    Args:
        scale: ``[rows, groups of columns]``, or of whole rows ``[rows]`` or the whole weight ``[1]``.
        bits: of a number, which is stored with ``2 ** (bits - 1)`` added.
        zero: what stands for 0, packed along the rows: ``[words, groups of columns]``; without, 0.
        groups: ``[columns]``, the group of each column; without, groups are of equal columns in a row.
    """
    rows, columns = shape
    scale = scale[:, None] if scale.ndim == 1 else scale
    numbers = _unpack(words, bits)[:, :columns].float()
    by_column = groups.long() if groups is not None else _equal_groups(columns, scale.shape[1])
    if zero is not None:
        numbers -= _unpack(zero.T.contiguous(), bits).T[:rows].float()[:, by_column]
    return numbers * scale.float()[:, by_column]


def awq(words: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """A weight ``[rows, columns]`` that AWQ keeps transposed, eight rows in an int32.

    Args:
        words: ``[columns, rows / 8]``.
        scale: ``[groups of columns, rows]``.
        zeros: ``[groups of columns, rows / 8]``, what stands for 0.
    """
    by_column = _equal_groups(words.shape[0], scale.shape[0])
    numbers = _awq_unpack(words).float() - _awq_unpack(zeros).float()[by_column]
    return (numbers * scale.float()[by_column]).T.contiguous()


def _spread(scale: torch.Tensor, rows: int, columns: int, block: tuple[int, int] | None) -> torch.Tensor:
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim == 1:
        scale = scale[:, None]
    high = _block(rows, scale.shape[-2], block and block[0])
    wide = _block(columns, scale.shape[-1], block and block[1])
    spread = scale.repeat_interleave(high, -2)[..., :rows, :]
    return spread if scale.shape[-1] == 1 else spread.repeat_interleave(wide, -1)[..., :columns]


def _block(size: int, blocks: int, said: int | None) -> int:
    if blocks == 1:
        return size
    if said is not None and -(-size // said) == blocks:
        return said
    if size % blocks:
        raise ValueError(f"{size} rows or columns do not divide into {blocks} equal blocks")
    return size // blocks


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """``[rows, words]`` as signed numbers ``[rows, words * (32 // bits)]``."""
    shifts = torch.arange(0, 32 // bits * bits, bits, dtype=torch.int32)
    numbers = (words[..., None] >> shifts) & (2**bits - 1)
    return numbers.flatten(-2) - 2 ** (bits - 1)


def _awq_unpack(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.tensor(_AWQ_ORDER, dtype=torch.int32) * 4
    return ((words[..., None] >> shifts) & 15).flatten(-2)


def _equal_groups(columns: int, groups: int) -> torch.Tensor:
    return torch.arange(columns) // -(-columns // groups)
