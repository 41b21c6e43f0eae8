"""The device on which stages are compared with transformers: ``WAVEPP_TEST_DEVICE``, by default the CPU."""

from __future__ import annotations

import os
from typing import Any

from wavepp_worker.model.stage import StageModel, StageOutput

TESTED_DEVICE = os.environ.get("WAVEPP_TEST_DEVICE", "cpu")
WAVE_SECONDS = 60.0


def in_step(stage: StageModel) -> StageModel:
    """A stage whose waves are over when ``forward`` returns, also on a GPU."""
    return stage if TESTED_DEVICE == "cpu" else _InStep(stage)  # type: ignore[return-value]


class _InStep:
    def __init__(self, stage: StageModel) -> None:
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def forward(self, *wave: Any) -> StageOutput:
        output = self._stage.forward(*wave)
        if output.done is not None:
            output.done.wait(WAVE_SECONDS)
        return output
