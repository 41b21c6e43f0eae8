"""The paper's models and machines as timed models in ``bench/models``: what their virtual devices are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from wavepp_worker.model.timed.timed_model import TimedModel, read_timed_model, write_timed_model
from wavepp_worker.runtime.planning.wave_cost import WaveCost

WAVE_TOKENS = 16_384
"""Tokens of a full wave, the paper's ``M``."""
BLOCK = 64
"""Tokens of a cache block, the paper's ``B``."""
VOCABULARY = 32_768
"""Token ids of the timed models are below it."""
MODELS_DIR = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class System:
    """What the tables do not say of a model and its machine.

    Attributes:
        stages: pipeline stages.
        activation_bytes: of one token between two stages.
        kv_bytes: of one token in one layer.
        host_bandwidth: bytes/s between a device and its host.
    """

    name: str
    stages: int
    parameters: float
    layers: int
    activation_bytes: int
    kv_bytes: int
    host_bandwidth: float


SYSTEMS = {
    "glm-5.2-pp4": System("GLM 5.2, PP4 on B300", 4, 744e9, 80, 2 * 6144, 704, 50e9),
    "minimax-m2.7-pp4": System("MiniMax M2.7, PP4 on B300", 4, 230e9, 64, 2 * 3072, 2048, 50e9),
    "kimi-k3-pp8": System("Kimi K3, PP8 on GB300", 8, 2.8e12, 64, 2 * 7168, 144, 200e9),
}


def read_system_model(name: str) -> TimedModel:
    """The timed model of one of ``SYSTEMS``, at the paper's speed."""
    return read_timed_model(MODELS_DIR / name)


def write_model_dir(name: str, speed: float, root: Path) -> Path:
    """Make a model directory under ``root`` for one of ``SYSTEMS``, with its times divided by ``speed``."""
    return write_timed_model(root / name, msgspec.structs.replace(read_system_model(name), speed=speed))


def stage_cost(model: TimedModel, stages: int) -> WaveCost:
    """The cost of a wave on each of ``stages`` equal stages, at speed 1."""
    share = model.layers / stages
    return WaveCost(model.wave_seconds * share, model.token_seconds * share, model.context_seconds * share)


def hop_seconds(model: TimedModel) -> float:
    """Seconds that half a wave's activations take from one stage to the next."""
    return sum(model.hop_times(WAVE_TOKENS // 2))
