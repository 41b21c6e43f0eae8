"""A pipeline of stages in one process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from wavepp_worker.model.stage import Chunk, ChunkState, PagedKV, StageModel


@dataclass
class Pipeline:
    """Stages run one after the other; each request's blocks lie scattered, and differently on each stage.

    Attributes:
        states: blocks of the state memory of each stage.
        resumed: by request, where it begins, and the block of the state there, the same on all stages.
        snapshots: by request and position, the block that a snapshot goes to.
    """

    stages: list[StageModel]
    block_size: int
    blocks: int
    seed: int = 0
    states: int = 8
    resumed: dict[int, tuple[int, int]] = field(default_factory=dict)
    snapshots: dict[int, dict[int, int]] = field(default_factory=dict)
    kvs: list[PagedKV] = field(init=False)
    tables: list[dict[int, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.kvs = [stage.make_kv(self.blocks, self.block_size, self.states) for stage in self.stages]
        self._free = [torch.randperm(self.blocks, generator=generator).tolist() for _ in self.stages]
        self.tables = [{} for _ in self.stages]

    def admit(self, request: int, tokens: int) -> None:
        """Give ``request`` blocks for ``tokens`` tokens on every stage."""
        for free, tables in zip(self._free, self.tables, strict=True):
            tables[request] = torch.tensor([free.pop() for _ in range(-(-tokens // self.block_size))])

    def fork(self, request: int, other: int, at: int, tokens: int, state: int) -> None:
        """Have ``request`` resume ``other`` after ``at`` tokens, a multiple of the block size, from a snapshot."""
        shared = at // self.block_size
        self.admit(request, tokens - at)
        for tables in self.tables:
            tables[request] = torch.cat([tables[other][:shared], tables[request]])
        self.resumed[request] = (at, state)

    def run(self, parts: list[tuple[int, int, torch.Tensor, bool]]) -> torch.Tensor:
        """Run a wave of ``(request, start, token ids, wants logits)``; returns the wanted logits."""
        data: object = torch.cat([tokens for _, _, tokens, _ in parts])
        output = None
        for stage, kv, tables in zip(self.stages, self.kvs, self.tables, strict=True):
            chunks = [
                Chunk(
                    start,
                    len(tokens),
                    self._table(kv, tables[r], start),
                    wants,
                    self._state(r, start, len(tokens)),
                )
                for r, start, tokens, wants in parts
            ]
            output = stage.forward(data, chunks, kv)  # type: ignore[arg-type]
            data = output.activations
        assert output is not None
        assert output.logits is not None
        return output.logits

    def _table(self, kv: PagedKV, table: torch.Tensor, start: int) -> torch.Tensor:
        """Each window has other blocks, and none where no token from ``start`` on looks."""
        rows = []
        for number, span in enumerate(kv.spans):
            row = (table + 3 * number) % self.blocks
            if span:
                row[: max(0, start + 1 - span) // self.block_size] = -1
            rows.append(row)
        return torch.stack(rows) if len(rows) > 1 else rows[0] if rows else table

    def _state(self, request: int, start: int, length: int) -> ChunkState:
        """Requests run in the blocks of their numbers."""
        endpoint, block = self.resumed.get(request, (0, None))
        before = block if start == endpoint else request
        taken = {at: to for at, to in self.snapshots.get(request, {}).items() if start < at <= start + length}
        return ChunkState(before, request, taken)
