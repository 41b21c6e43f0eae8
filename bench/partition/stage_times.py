"""How long stages of any layers take for a wave, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from wavepp_worker.model.architecture import outline, read_config
from wavepp_worker.model.kv.layer_cache import SHARED_INDEX
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.model.stage import Activations, Chunk, ChunkState, StageModel
from wavepp_worker.model.stage_loader import load_stage

BLOCK_SIZE = 32
RUNS, UNTIMED_RUNS = 9, 2
MOST_LAYERS_OF_A_RUN = 5
WAVE_SECONDS = 600.0
"""That a GPU may take for a wave."""


@dataclass(frozen=True)
class Wave:
    """What each stage computes.

    Attributes:
        requests: as many prompts, which end in it.
        tokens: of each.
        behind: tokens of each that are cached.
    """

    requests: int
    tokens: int
    behind: int


def kinds_of(info: ModelInfo) -> list[int]:
    """Of each layer, one that stands for it: the second or first that keeps and has the same; the last is its own.

    The first layer of a model has no activations to take in, so another stands for it if there is one.
    """
    parts = outline(read_config(info.path))
    last = info.num_layers - 1
    keys = [
        ("last",)
        if layer == last
        else (info.caches[layer], parts.layers[layer], parts.parameters[layer], parts.windows[layer])
        for layer in range(info.num_layers)
    ]
    return [
        next((at for at in range(1, last + 1) if keys[at] == key), layer) for layer, key in enumerate(keys)
    ]


@dataclass
class StageTimes:
    """Stages are loaded and timed once, when somebody asks for them.

    Attributes:
        dtype: of weights and KV, as torch has its name.
        notice: told which layers are timed.
    """

    info: ModelInfo
    wave: Wave
    dtype: str
    device: str
    notice: Callable[[range], None] = lambda layers: None
    _known: dict[range, float] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> list[int]:
        """``kinds_of`` the model."""
        return kinds_of(self.info)

    def seconds(self, layers: range) -> float:
        """Of a wave in a stage of these layers: the least of ``RUNS``.

        Raises:
            ConfigError: the model, the dtype or the device cannot be used.
            RuntimeError: there is not enough memory.
        """
        if layers not in self._known:
            self.notice(layers)
            forward = self._forward(layers)
            for _ in range(UNTIMED_RUNS):
                forward()
            taken = []
            for _ in range(RUNS):
                begun = time.perf_counter()
                forward()
                taken.append(time.perf_counter() - begun)
            self._known[layers] = min(taken)
        return self._known[layers]

    def by_layer(self) -> tuple[list[float], float]:
        """Seconds of each layer, the head's in the last one's, and what a stage takes whatever it has.

        Layers follow from stages of one, and what a stage takes from how much less several take together.
        """
        count = self.info.num_layers
        alone = [self.seconds(range(layer, layer + 1)) for layer in self.kinds]
        # Neither the first layer nor the last, if there are others.
        run = range(1, min(1 + MOST_LAYERS_OF_A_RUN, count - 1)) if count > 3 else range(count)
        if len(run) < 2:
            return alone, 0.0
        more = sum(alone[layer] for layer in run) - self.seconds(run)
        stage = min(max(0.0, more / (len(run) - 1)), *alone)
        return [seconds - stage for seconds in alone], stage

    def _forward(self, layers: range) -> Callable[[], None]:
        wave = self.wave
        stage = load_stage(self.info.path, layers, getattr(torch, self.dtype), self.device, (), "auto")
        blocks = -(-(wave.behind + wave.tokens) // BLOCK_SIZE)
        kv = stage.make_kv(blocks * wave.requests, BLOCK_SIZE, wave.requests)
        chunks = [
            Chunk(
                wave.behind,
                wave.tokens,
                torch.arange(number * blocks, (number + 1) * blocks),
                wants_logits=True,
                state=ChunkState(number if wave.behind else None, number) if stage.recurrent else None,
            )
            for number in range(wave.requests)
        ]
        return partial(_run, stage, self._inputs(stage, layers), chunks, kv)

    def _inputs(self, stage: StageModel, layers: range) -> torch.Tensor | Activations:
        tokens = self.wave.requests * self.wave.tokens
        if not layers.start:
            return torch.randint(stage.vocab_size, (tokens,))
        inputs = {"hidden": torch.randn(tokens, self.info.hidden_size).to(stage.dtype)}
        if self.info.caches[layers.start].kind == SHARED_INDEX:
            picked = torch.arange(read_config(self.info.path).index_topk, dtype=torch.int32)
            inputs["picked"] = (picked % max(1, self.wave.behind)).expand(tokens, -1).contiguous()
        return inputs


def _run(stage: StageModel, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: Any) -> None:
    done = stage.forward(inputs, chunks, kv).done
    if done is not None:
        done.wait(WAVE_SECONDS)
