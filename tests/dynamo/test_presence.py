"""When a worker takes it that discovery has forgotten it."""

from __future__ import annotations

import asyncio

import pytest
from wavepp_worker.dynamo import presence
from wavepp_worker.dynamo.presence import DRAINED_SECONDS, LOST_SECONDS, Presence, watch_presence


def first_lost(*stretches: tuple[bool, range]) -> int | None:
    judge = Presence()
    for present, seconds in stretches:
        for now in seconds:
            if judge.lost(present, float(now)):
                return now
    return None


def test_a_worker_that_is_not_entered_yet_is_not_lost() -> None:
    assert first_lost((False, range(1000))) is None


def test_a_worker_that_is_there_is_not_lost_however_long_it_stood_still() -> None:
    assert first_lost((True, range(10)), (True, range(100, 110))) is None
    assert first_lost((True, range(10)), (False, range(100, 104)), (True, range(104, 200))) is None


def test_after_it_stood_still_a_worker_that_is_gone_is_lost_soon() -> None:
    lost = first_lost((True, range(10)), (False, range(100, 200)))
    assert lost == 100 + LOST_SECONDS + 1


def test_otherwise_it_has_the_time_that_a_worker_needs_to_finish_after_it_was_told_to_stop() -> None:
    assert first_lost((True, range(10)), (False, range(10, 200))) == 9 + DRAINED_SECONDS + 1


def test_a_lost_worker_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(presence, "DRAINED_SECONDS", 0.05)
    said: list[str] = []

    class Endpoint:
        asked = 0

        async def client(self) -> Endpoint:
            return self

        def connection_id(self) -> int:
            return 7

        def instance_ids(self) -> list[int]:
            self.asked += 1
            return [3, 7] if self.asked < 20 else [3]

    asyncio.run(asyncio.wait_for(watch_presence(Endpoint(), said.append), 10))
    (sentence,) = said
    assert "discovery has forgotten this worker" in sentence
