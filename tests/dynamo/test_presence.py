"""When a worker takes it that discovery has forgotten it."""

from __future__ import annotations

import asyncio

import pytest
from wavepp_worker.dynamo import presence
from wavepp_worker.dynamo.presence import FIRST_LOOKS, LOOKS, Presence, watch_presence


def looks_until_lost(*stretches: tuple[bool, int]) -> int | None:
    judge = Presence()
    looks = 0
    for present, times in stretches:
        for _ in range(times):
            looks += 1
            if judge.lost(present) is not None:
                return looks
    return None


def test_a_worker_that_is_not_entered_yet_is_not_lost() -> None:
    assert looks_until_lost((False, FIRST_LOOKS - 1), (True, 10)) is None


def test_a_worker_that_is_never_entered_is_lost_after_a_while() -> None:
    """As one that was forgotten before its first look."""
    assert looks_until_lost((False, 1000)) == FIRST_LOOKS


def test_a_worker_that_was_late_is_judged_like_any_other() -> None:
    assert looks_until_lost((False, FIRST_LOOKS - 1), (True, 1), (False, 100)) == FIRST_LOOKS + LOOKS


def test_a_worker_that_is_there_again_at_the_second_look_is_not_lost() -> None:
    missed = LOOKS - 1
    assert looks_until_lost((True, 10), (False, missed), (True, 1), (False, missed), (True, 10)) is None


def test_a_worker_that_is_gone_at_look_after_look_is_lost() -> None:
    assert LOOKS > 1
    assert looks_until_lost((True, 10), (False, 100)) == 10 + LOOKS
    assert looks_until_lost((False, 7), (True, 1), (False, 1), (True, 1), (False, 100)) == 10 + LOOKS


@pytest.mark.parametrize(
    ("entered", "sentence"),
    [
        (19, "discovery has forgotten this worker"),
        (0, "discovery has had no entry of this worker in 60 looks"),
    ],
    ids=["forgotten", "never entered"],
)
def test_a_lost_worker_is_told_of_once(entered: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)
    said: list[str] = []

    class Endpoint:
        asked = 0

        async def client(self) -> Endpoint:
            return self

        def connection_id(self) -> int:
            return 7

        def instance_ids(self) -> list[int]:
            self.asked += 1
            return [3, 7] if self.asked <= entered else [3]

    asyncio.run(asyncio.wait_for(watch_presence(Endpoint(), said.append), 10))
    (told,) = said
    assert told.startswith(sentence)
