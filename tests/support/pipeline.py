"""A pipeline of stages in one process."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from wavepp_worker.model.stage import Chunk, PagedKV, StageModel


@dataclass
class Pipeline:
    """Stages run one after the other; each request's blocks lie scattered, and differently on each stage."""

    stages: list[StageModel]
    block_size: int
    blocks: int
    seed: int = 0
    kvs: list[PagedKV] = field(init=False)
    tables: list[dict[int, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.kvs = [stage.make_kv(self.blocks, self.block_size) for stage in self.stages]
        self._free = [torch.randperm(self.blocks, generator=generator).tolist() for _ in self.stages]
        self.tables = [{} for _ in self.stages]

    def admit(self, request: int, tokens: int) -> None:
        """Give ``request`` blocks for ``tokens`` tokens on every stage."""
        for free, tables in zip(self._free, self.tables, strict=True):
            tables[request] = torch.tensor([free.pop() for _ in range(-(-tokens // self.block_size))])

    def run(self, parts: list[tuple[int, int, torch.Tensor, bool]]) -> torch.Tensor:
        """Run a wave of ``(request, start, token ids, wants logits)``; returns the wanted logits."""
        data: object = torch.cat([tokens for _, _, tokens, _ in parts])
        output = None
        for stage, kv, tables in zip(self.stages, self.kvs, self.tables, strict=True):
            chunks = [Chunk(start, len(tokens), tables[r], wants) for r, start, tokens, wants in parts]
            output = stage.forward(data, chunks, kv)  # type: ignore[arg-type]
            data = output.activations
        assert output is not None
        assert output.logits is not None
        return output.logits
