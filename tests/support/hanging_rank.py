"""A rank process that hangs where, and as soon as, a file tells it to; ``python -m`` it in place of a rank."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from wavepp_worker.model.stage import StageOutput
from wavepp_worker.runtime.admission.actions import RoundActions
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank import main as rank_main
from wavepp_worker.runtime.rank.build import StageDevice, load_device

VARIABLE = "WAVEPP_TEST_HANG"
"""The environment variable that names the file; in it stand a rank and a place."""
PLACES = ("forward", "device", "vote")
MODULE = "tests.support.hanging_rank"


def hang_if_told(rank: int, place: str) -> None:
    file = Path(os.environ[VARIABLE])
    if file.exists() and file.read_text().split() == [str(rank), place]:
        time.sleep(3600)


class Device:
    """Implements ``Completion``, of a wave that the device ended at once."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def wait(self, timeout: float) -> None:
        hang_if_told(self._rank, "device")


class HangingStage:
    """A stage with a device behind it."""

    def __init__(self, stage: Any, rank: int) -> None:
        self._stage = stage
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def forward(self, *args: Any) -> StageOutput:
        hang_if_told(self._rank, "forward")
        return dataclasses.replace(self._stage.forward(*args), done=Device(self._rank))


def load_hanging_device(config: RankConfig) -> StageDevice:
    stage: Any = HangingStage((device := load_device(config)).stage, config.rank)
    vote = RoundActions.vote

    def hanging_vote(self: RoundActions, *args: Any) -> Any:
        hang_if_told(config.rank, "vote")
        return vote(self, *args)

    RoundActions.vote = hanging_vote  # type: ignore[method-assign]
    return dataclasses.replace(device, stage=stage)


if __name__ == "__main__":
    rank_main.load_device = load_hanging_device
    rank_main.main()
