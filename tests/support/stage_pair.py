"""A model in two stages of one process, without a runtime."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage


class StagePair:
    """Two uneven pipeline stages of a model with KV of their own, without a runtime."""

    def __init__(self, model: Path, block: int = 8, blocks: int = 400) -> None:
        self.info = read_model_info(model)
        ends = [0, 2, self.info.num_layers]
        layers = [range(a, b) for a, b in itertools.pairwise(ends)]
        self.stages = [load_stage(model, each, torch.float32, "cpu") for each in layers]
        self.kvs = [stage.make_kv(blocks, block) for stage in self.stages]
        self.block_size = block
        self._lock = threading.Lock()

    def compute(self, table: torch.Tensor, tokens: np.ndarray, start: int, end: int) -> torch.Tensor:
        """Run positions ``[start, end)`` of a prompt: the last one's logits ``[vocabulary]``."""
        with self._lock:
            data: Any = torch.from_numpy(tokens[start:end].astype(np.int64))
            for stage, kv in zip(self.stages, self.kvs, strict=True):
                output = stage.forward(data, [Chunk(start, end - start, table, True)], kv)
                data = output.activations
            assert output.logits is not None
            return output.logits[0]

    def table(self, tokens: np.ndarray, first: int = 0) -> torch.Tensor:
        return torch.arange(first, first - (-len(tokens) // self.block_size))
