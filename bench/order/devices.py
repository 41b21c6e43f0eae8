"""What virtual devices ``bench.order`` runs on: those of the paper, and slow ones like a CPU's cores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wavepp_worker.model.timed.timed_model import read_timed_model, write_timed_model

from bench.common.systems import MODELS_DIR, SYSTEMS, WAVE_TOKENS


@dataclass(frozen=True)
class Device:
    """Stages of a pipeline, and most tokens of a wave."""

    name: str
    stages: int
    wave_tokens: int


DEVICES = {
    **{name: Device(system.name, system.stages, WAVE_TOKENS) for name, system in SYSTEMS.items()},
    "cpu-like-pp2": Device("two stages of one CPU core each", 2, 512),
}
"""By the directory of their cost model. On the last one a question takes 0.12 s, and a document, 32 waves, 2.8 s."""


def write_device_dir(name: str, root: Path) -> Path:
    """Make a model directory under ``root`` for one of ``DEVICES``."""
    return write_timed_model(root / name, read_timed_model(MODELS_DIR / name))
