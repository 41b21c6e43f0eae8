"""Where the tokens of one wave lie in the packed tensors, and what passes by on their way through a stage."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.device.cuda_device import to_device
from wavepp_worker.model.kv.window_layout import WindowLayout
from wavepp_worker.model.stage import Chunk, ChunkState

if TYPE_CHECKING:
    from wavepp_worker.model.gpu.flashinfer_attention import FlashInfer


@dataclass
class WaveLayout:
    """One wave's layout, and what passes by on its way through a stage.

    Where keys and values are gathered, those of a *prefill* wave follow request after request; those of a *decode*
    wave, where every chunk is one token, become a batch padded to the longest request.

    Attributes:
        starts: tokens of each chunk's request that lie before the chunk.
        lengths: new tokens of each chunk.
        decode: whether every chunk is a single token after a prefix.
        positions: int64 ``[1, tokens]``.
        tables: each request's block table, int64 on the CPU; with a row for each window of the layers, or one for all.
        block_size: tokens per block.
        device: where the layers compute.
        wanting: chunks that want logits.
        wanted: int64, of each of these, which of the wave's tokens is its last.
        states: where each chunk's state is, for recurrent layers.
        adapters: name of each chunk's LoRA adapter, empty for none.
        entering: activations ``[1, tokens, hidden]`` from the previous stage.
        leaving: activations ``[1, tokens, hidden]`` for the next stage.
        entering_picked: what an indexer of an earlier stage picked for the first layers here.
        leaving_picked: what the last layers here read, for those of the next stage that read the same.
        at_hand: where the tokens of the layer at hand lie.
        pools: its keys and values ``[rows, heads, dim]``, if its attention reads them itself.
        flashinfer: what reads them on a GPU.
        absorbing: layers of which it reads latents.
        windows: the sliding window that each layer's attention was called with.
        answered: keys and values that the cache last answered with.
        only_masked: layers whose attention does nothing to the scores but mask them.
        as_answered: layers whose attention takes just these, and does nothing to the scores but mask them; with how
            many heads their queries have.
    """

    starts: list[int]
    lengths: list[int]
    decode: bool
    positions: torch.Tensor
    tables: list[torch.Tensor]
    block_size: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    wanting: list[int] = field(default_factory=list)
    wanted: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    states: list[ChunkState | None] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)
    entering: torch.Tensor | None = None
    leaving: torch.Tensor | None = None
    entering_picked: torch.Tensor | None = None
    leaving_picked: torch.Tensor | None = None
    pools: tuple[torch.Tensor, torch.Tensor] | None = None
    flashinfer: FlashInfer | None = None
    absorbing: Collection[int] = ()
    windows: dict[int, int | None] = field(default_factory=dict)
    answered: tuple[torch.Tensor, torch.Tensor] | None = None
    only_masked: set[int] = field(default_factory=set)
    as_answered: dict[int, int] = field(default_factory=dict)
    _windows: dict[tuple[int, int], WindowLayout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at_hand = self.window(0, 0)

    @cached_property
    def adapter_rows(self) -> dict[str, slice | torch.Tensor]:
        """Which of the wave's tokens go through each adapter that is in it."""
        spans: dict[str, list[tuple[int, int]]] = {}
        at = 0
        for name, length in zip(self.adapters, self.lengths, strict=False):
            if name:
                own = spans.setdefault(name, [])
                # Neighbours are one piece.
                first = own.pop()[0] if own and own[-1][1] == at else at
                own.append((first, at + length))
            at += length
        return {name: self._rows(own) for name, own in spans.items()}

    def _rows(self, spans: list[tuple[int, int]]) -> slice | torch.Tensor:
        if len(spans) == 1:
            return slice(*spans[0])
        return to_device(torch.cat([torch.arange(*span) for span in spans]), self.device)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def adapted(self) -> bool:
        """Whether some of the wave's tokens go through an adapter."""
        return any(self.adapters)

    @property
    def trimmed(self) -> bool:
        """Whether the last layer has less to compute for than all tokens.

        Where adapters are, it computes for all: they know their tokens by their places in the wave.
        """
        return len(self.wanting) < self.tokens and not self.adapted

    def window(self, number: int, span: int) -> WindowLayout:
        """Where the tokens are in the pools of the layers that share a window.

        Args:
            number: of the row in the block tables that have several.
            span: tokens that a token sees, itself included; 0 for all before it.
        """
        if (number, span) not in self._windows:
            tables = [table if table.ndim == 1 else table[number] for table in self.tables]
            self._windows[number, span] = WindowLayout(
                tables, self.starts, self.lengths, span, self.decode, self.block_size, self.device
            )
        return self._windows[number, span]

    def bring(self, spans: Sequence[int], *, in_place: bool) -> None:
        """Take to the device, by one copy, what its layers have to know of the wave, and make the slots of it there.

        Args:
            spans: of their windows.
            in_place: all of them read the pools where they are.
        """
        windows = [self.window(number, span) for number, span in enumerate(spans)]
        parts = [self.positions[0], self.wanted]
        for window in windows:
            parts += [window.host_bounds(), window.host_places(), window.host_read_blocks()]
        there = iter(to_device(torch.cat(parts), self.device).split([len(part) for part in parts]))
        self.positions, self.wanted = next(there)[None], next(there)
        for window in windows:
            bounds, places, blocks = next(there), next(there), next(there)
            window.bounds = window.as_bounds(bounds)
            window.place(blocks, bounds, places, self.positions[0], read=not in_place)
            if in_place:
                window.read_blocks = blocks.to(torch.int32)


def lay_out_wave(
    chunks: list[Chunk],
    block_size: int,
    device: torch.device,
    spans: Sequence[int] = (),
    *,
    in_place: bool = False,
) -> WaveLayout:
    """Lay out ``chunks``.

    Args:
        spans: of the windows of layers that will compute.
        in_place: they all read the pools where they are.

    Raises:
        WaveppError: a chunk is empty, or a block table too short for its windows.
    """
    starts, lengths = [c.start for c in chunks], [c.length for c in chunks]
    if not chunks or min(lengths) < 1 or min(starts) < 0:
        raise WaveppError(
            f"a wave needs chunks of at least one token, not starts {starts} and lengths {lengths}"
        )
    ends = torch.tensor(lengths).cumsum(0) - 1
    wanting = [number for number, chunk in enumerate(chunks) if chunk.wants_logits]
    wave = WaveLayout(
        starts=starts,
        lengths=lengths,
        decode=max(lengths) == 1 and min(starts) > 0,
        positions=torch.from_numpy(
            np.concatenate([np.arange(c.start, c.start + c.length) for c in chunks])[None]
        ),
        tables=[c.block_table.cpu() for c in chunks],
        block_size=block_size,
        device=device,
        wanting=wanting,
        wanted=ends[wanting],
        states=[c.state for c in chunks],
        adapters=[c.adapter for c in chunks],
    )
    if device.type != "cpu":
        wave.bring(spans, in_place=in_place)
    for number, span in enumerate(spans):
        # A block table that is too short is found before anything is computed.
        _ = wave.window(number, span).write_slots
    return wave


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
