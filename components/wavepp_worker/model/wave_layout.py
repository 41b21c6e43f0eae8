"""Where the tokens of one wave lie: in the packed tensors, and in the paged KV pool."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.stage import Chunk


def token_slots(block_table: torch.Tensor, start: int, end: int, block_size: int) -> torch.Tensor:
    """Pool rows of tokens ``[start, end)``: int64 on the CPU.

    Raises:
        WaveppError: the block table is too short.
    """
    table = block_table.cpu()
    if end > len(table) * block_size:
        raise WaveppError(
            f"tokens [{start}, {end}) need {-(-end // block_size)} blocks of {block_size} but the block table "
            f"has {len(table)}"
        )
    positions = torch.arange(start, end)
    return table[positions // block_size] * block_size + positions % block_size


@dataclass
class WaveLayout:
    """One wave's layout, and what passes by on its way through a stage.

    In a *prefill* wave keys and values are gathered request after request; in a *decode* wave, where every
    chunk is one token, they are gathered into a batch padded to the longest request.

    Attributes:
        starts: tokens of each chunk's request that lie before the chunk.
        lengths: new tokens of each chunk.
        decode: whether every chunk is a single token after a prefix.
        positions: int64 ``[1, tokens]``.
        write_slots: int64 ``[tokens]``, pool rows that receive the new keys and values.
        read_slots: int64, pool rows to gather: ``[sum of start + length]``, or ``[chunks * longest]`` for
            decode; None when no chunk has a prefix, so that the new keys and values are all there is.
        entering: activations ``[1, tokens, hidden]`` from the previous stage.
        leaving: activations ``[1, tokens, hidden]`` for the next stage.
        windows: the sliding window that each layer's attention was called with.
    """

    starts: list[int]
    lengths: list[int]
    decode: bool
    positions: torch.Tensor
    write_slots: torch.Tensor
    read_slots: torch.Tensor | None
    entering: torch.Tensor | None = None
    leaving: torch.Tensor | None = None
    windows: dict[int, int | None] = field(default_factory=dict)
    _masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return len(self.write_slots)

    def decode_mask(self, window: int | None) -> torch.Tensor | None:
        """Bool ``[chunks, 1, 1, longest]``: what each decode token attends; None when that is everything."""
        if window not in self._masks:
            device = self.positions.device
            ends = torch.tensor(self.starts, device=device)[:, None] + 1
            at = torch.arange(max(self.starts) + 1, device=device)[None]
            mask = at < ends
            if window is not None:
                mask &= at >= ends - window
            self._masks[window] = None if bool(mask.all()) else mask[:, None, None]
        return self._masks[window]


def lay_out_wave(chunks: list[Chunk], block_size: int, device: torch.device) -> WaveLayout:
    """Lay out ``chunks``.

    Raises:
        WaveppError: a chunk is empty or its block table is too short.
    """
    starts, lengths = [c.start for c in chunks], [c.length for c in chunks]
    if not chunks or min(lengths) < 1 or min(starts) < 0:
        raise WaveppError(
            f"a wave needs chunks of at least one token, not starts {starts} and lengths {lengths}"
        )
    slots = [token_slots(c.block_table, 0, c.start + c.length, block_size) for c in chunks]
    decode = max(lengths) == 1 and min(starts) > 0
    if decode:
        # Padding repeats a request's own first token: finite whenever its own cache is, and masked anyway.
        longest = max(len(s) for s in slots)
        read = torch.cat([torch.cat([s, s[:1].expand(longest - len(s))]) for s in slots])
    else:
        read = torch.cat(slots)
    return WaveLayout(
        starts=starts,
        lengths=lengths,
        decode=decode,
        positions=torch.cat([torch.arange(c.start, c.start + c.length) for c in chunks])[None].to(device),
        write_slots=torch.cat([s[c.start :] for s, c in zip(slots, chunks, strict=True)]).to(device),
        read_slots=read.to(device) if max(starts) else None,
    )


_current: ContextVar[WaveLayout] = ContextVar("wavepp_wave")


def current_wave() -> WaveLayout:
    """The wave that this thread is running through a model."""
    return _current.get()


@contextlib.contextmanager
def running(wave: WaveLayout) -> Iterator[None]:
    """Make ``wave`` the current one; transformers' modules have no argument to carry it in."""
    token = _current.set(wave)
    try:
        yield
    finally:
        _current.reset(token)
