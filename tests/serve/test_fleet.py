"""The processes that are kept running, here without any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wavepp_worker.liveness.deaths import VARIABLE, Death, DeathNotes, missed_since
from wavepp_worker.serve.fleet import Fleet


class Keeper:
    """Stands in for one whose process is called ``label``."""

    def __init__(self, label: str) -> None:
        self.process = SimpleNamespace(label=label)
        self.stopped: list[float] = []

    async def stop(self, seconds: float) -> None:
        self.stopped.append(seconds)


@pytest.fixture
def notes(tmp_path: Path) -> DeathNotes:
    return DeathNotes(tmp_path / "deaths.json")


def test_who_was_removed_is_not_missed(notes: DeathNotes, tmp_path: Path) -> None:
    async def run() -> None:
        changes: list[None] = []
        away: Any = SimpleNamespace(death_notes=lambda: notes)
        anything: Any = None
        fleet = Fleet({}, "file", away, anything, anything, lambda: changes.append(None))
        keeper: Any = Keeper("PrefillWorker:1")
        fleet.keepers.append(keeper)
        await fleet.remove(keeper, 3.0)
        assert (keeper.stopped, fleet.keepers, len(changes)) == ([3.0], [], 1)

    environment = {VARIABLE: str(tmp_path / "deaths.json")}
    for label in ("PrefillWorker:1", "DecodeWorker:0"):
        notes.note(Death(label, "was ended by SIGKILL", 1.0))
    asyncio.run(run())
    assert [death.label for death in missed_since(environment, 0.0)] == ["DecodeWorker:0"]
