"""Whether a kernel of attention over paged KV computes what torch does, on the device where it is to be used."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.attention.interface import attend_tiled
from wavepp_worker.model.attention.latent_absorption import LatentSizes
from wavepp_worker.model.kv.window_layout import WindowLayout, token_slots

_BLOCK_SIZES = (16, 32, 16, 32, 16, 32, 16, 32, 16, 32)
"""Of one wave after the other: more than are launched ahead."""
_TOLERANCE = 0.03
"""Of averages of numbers around 1 in 16 bits; a token too many or too few shows as tenths."""

Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, WindowLayout, int, float, int | None], torch.Tensor
]
"""As ``FlashInfer.attend``."""
Read = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, WindowLayout, int, float], torch.Tensor
]
"""As ``FlashInferLatent.read``."""


class Trial:
    """One wave: a token after a prefix, a whole prompt, and chunks after prefixes, in blocks that lie anywhere."""

    def __init__(self, number: int, block_size: int, heads: Heads, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(number)
        self.starts, self.lengths = [5, 0, 129 + 16 * number, 64], [1, 40, 33, 1 + number]
        counts = [-(-end // block_size) for end in self.ends]
        self.tables = list(torch.randperm(sum(counts), generator=draw).split(counts))
        self.block_size = block_size
        rows = sum(counts) * block_size
        self.query, self.keys, self.values = (
            torch.randn(tokens, own, heads.dim, generator=draw).to(dtype)
            for tokens, own in ((sum(self.lengths), heads.queries), (rows, heads.keys), (rows, heads.keys))
        )

    @property
    def ends(self) -> list[int]:
        return [start + length for start, length in zip(self.starts, self.lengths, strict=True)]

    def bring(self, device: torch.device) -> None:
        """Take to the device what a wave finds there."""
        self._there = [each.to(device) for each in (self.query, self.keys, self.values)]
        self._layout = WindowLayout(self.tables, self.starts, self.lengths, 0, False, self.block_size, device)

    def ask(self, attend: Attend, window: int | None) -> torch.Tensor:
        query, keys, values = self._there
        asking = query.transpose(0, 1)[None]
        return attend(asking, keys, values, self._layout, self.block_size, self._scale, window)

    def expected(self, window: int | None) -> torch.Tensor:
        """By torch in float32, ``[1, tokens, heads, dim]``."""
        bounds = [0, *torch.tensor(self.lengths).cumsum(0).tolist()]
        parts = []
        for table, end, (first, last) in zip(self.tables, self.ends, pairwise(bounds), strict=True):
            slots = token_slots(table, 0, end, self.block_size)
            query, key, value = (
                rows.float().transpose(0, 1)[None]
                for rows in (self.query[first:last], self.keys[slots], self.values[slots])
            )
            parts.append(attend_tiled(query, key, value, self._scale, window, None, None).transpose(1, 2))
        return torch.cat(parts, 1)

    @property
    def _scale(self) -> float:
        return self.query.shape[-1] ** -0.5


class LatentTrial(Trial):
    """The same where all heads read one latent and one rotated key of a token."""

    def __init__(self, number: int, block_size: int, sizes: LatentSizes, dtype: torch.dtype) -> None:
        super().__init__(number, block_size, Heads(sizes.heads, 1, sizes.rank + sizes.rotary), dtype)
        self._rank = sizes.rank
        self.values = self.keys[..., : sizes.rank]

    def read(self, read: Read) -> torch.Tensor:
        query, keys, values = self._there
        rank = self._rank
        return read(
            query[..., :rank],
            query[..., rank:],
            values.contiguous(),
            keys[..., rank:].contiguous(),
            self._layout,
            self.block_size,
            self._scale,
        )


def latents_agree_with_torch(
    read: Read, sizes: LatentSizes, dtype: torch.dtype, device: torch.device
) -> bool:
    """As ``agrees_with_torch``, of kernels that read latents."""
    trials = [LatentTrial(number, size, sizes, dtype) for number, size in enumerate(_BLOCK_SIZES)]
    with torch.inference_mode():
        for trial in trials:
            trial.bring(device)
        answers = [trial.read(read)[None] for trial in trials]
        return all(
            _agree(answer, trial.expected(None)) for trial, answer in zip(trials, answers, strict=True)
        )


def agrees_with_torch(
    attend: Attend, heads: Heads, window: int | None, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether waves that are launched one right behind the other are answered as torch answers them in float32."""
    trials = [Trial(number, size, heads, dtype) for number, size in enumerate(_BLOCK_SIZES)]
    with torch.inference_mode():
        for trial in trials:
            trial.bring(device)
        answers = [trial.ask(attend, window) for trial in trials]
        return all(
            _agree(answer, trial.expected(window)) for trial, answer in zip(trials, answers, strict=True)
        )


def _agree(answer: torch.Tensor, expected: torch.Tensor) -> bool:
    return answer.shape == expected.shape and bool(
        ((answer.cpu().float() - expected).abs() < _TOLERANCE).all()
    )
