"""A pipeline of stages in one process, and what it must agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from wavepp_worker.model.load import load_stage
from wavepp_worker.model.stage import Chunk, PagedKV, StageModel


@dataclass
class Pipeline:
    """Stages run one after the other; each request's blocks lie scattered, and differently on each stage."""

    stages: list[StageModel]
    block: int
    blocks: int
    seed: int = 0
    kvs: list[PagedKV] = field(init=False)
    tables: list[dict[int, torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.kvs = [stage.make_kv(self.blocks, self.block) for stage in self.stages]
        self._free = [torch.randperm(self.blocks, generator=generator).tolist() for _ in self.stages]
        self.tables = [{} for _ in self.stages]

    def admit(self, request: int, tokens: int) -> None:
        """Give ``request`` blocks for ``tokens`` tokens on every stage."""
        for free, tables in zip(self._free, self.tables, strict=True):
            tables[request] = torch.tensor([free.pop() for _ in range(-(-tokens // self.block))])

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


@pytest.fixture(scope="session")
def stages() -> Callable[..., list[StageModel]]:
    """``stages(directory, ends, dtype=float32)``: the stages that end before those layers."""
    made: dict[tuple[Path, range, torch.dtype], StageModel] = {}

    def load(directory: Path, ends: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[StageModel]:
        ranges = [range(a, b) for a, b in zip((0, *ends[:-1]), ends, strict=True)]
        for layers in ranges:
            if (directory, layers, dtype) not in made:
                made[directory, layers, dtype] = load_stage(directory, layers, dtype, "cpu")
        return [made[directory, layers, dtype] for layers in ranges]

    return load


@pytest.fixture(scope="session")
def pipeline() -> type[Pipeline]:
    return Pipeline


@pytest.fixture(scope="session")
def plain() -> Callable[..., torch.Tensor]:
    """``plain(directory, tokens, dtype=float32)``: transformers' logits ``[tokens, vocabulary]``."""
    made: dict[tuple[Path, torch.dtype], torch.nn.Module] = {}

    def logits(directory: Path, tokens: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if (directory, dtype) not in made:
            # Eager attention is the reference that every architecture defines itself by.
            made[directory, dtype] = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation="eager"
            ).eval()
        with torch.inference_mode():
            return made[directory, dtype](tokens[None]).logits[0].float()

    return logits
