"""When a worker takes it that discovery has forgotten it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import pytest
from wavepp_worker.dynamo import presence
from wavepp_worker.dynamo.dropped_requests import DroppedRequests
from wavepp_worker.dynamo.presence import FIRST_LOOKS, LOOKS, Presence, watch_presence
from wavepp_worker.dynamo.spare_descriptors import SPARE_DESCRIPTORS

from tests.chaos.injectors import limits
from tests.support.waiting import until


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

        def connection_id(self) -> int:
            return 7

        def instance_ids(self) -> list[int]:
            self.asked += 1
            return [3, 7] if self.asked <= entered else [3]

    endpoint = Endpoint()
    asyncio.run(asyncio.wait_for(watch_presence(endpoint, endpoint, said.append), 10))
    (told,) = said
    assert told.startswith(sentence)


class AwayEndpoint:
    """Dynamo's; notes when this worker was entered and taken out."""

    def __init__(self) -> None:
        self.entered = True
        self.said: list[str] = []

    def connection_id(self) -> int:
        return 7

    def instance_ids(self) -> list[int]:
        return [7] if self.entered else []

    async def unregister_endpoint_instance(self) -> None:
        self.entered = False
        self.said.append("out")

    async def register_endpoint_instance(self) -> None:
        self.entered = True
        self.said.append("in")


class Dropped(DroppedRequests):
    """A count that a test changes."""

    def __init__(self) -> None:
        super().__init__({})
        self.count = self.seen = self.looks = 0

    async def more(self) -> bool:
        self.looks += 1
        before, self.seen = self.seen, self.count
        return self.count > before


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(presence, "SHORTEST_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(presence, "LONGEST_AWAY_SECONDS", 0.3)


@pytest.mark.usefixtures("quick")
def test_a_worker_that_dropped_requests_is_out_of_discovery_for_a_moment() -> None:
    endpoint, dropped, told = AwayEndpoint(), Dropped(), list[str]()

    async def scenario() -> None:
        task = asyncio.create_task(watch_presence(endpoint, endpoint, told.append, dropped))
        dropped.count += 1
        await until(lambda: endpoint.said == ["out", "in"])
        dropped.count += 1
        await until(lambda: len(endpoint.said) == 4)
        looks = dropped.looks
        await until(lambda: dropped.looks > looks + 1)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    assert (endpoint.said, told) == (["out", "in"] * 2, [])


@pytest.mark.usefixtures("quick")
def test_a_worker_is_out_of_discovery_while_it_can_open_nothing_and_gives_up_what_it_held() -> None:
    endpoint, dropped, told = AwayEndpoint(), Dropped(), list[str]()
    before = len(os.listdir("/proc/self/fd"))

    async def scenario() -> None:
        task = asyncio.create_task(watch_presence(endpoint, endpoint, told.append, dropped))
        await until(lambda: dropped.looks)
        with limits.few_descriptors(os.getpid(), 0):
            await until(lambda: endpoint.said)
            with contextlib.closing(socket.socket()):
                await asyncio.sleep(0.05)
                assert endpoint.said == ["out"]
            # Whoever waits for it is told as well, and not once more when the worker is back.
            dropped.count += 1
        looks = dropped.looks
        await until(lambda: dropped.looks > looks + 2)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    assert (endpoint.said, told) == (["out", "in"], [])
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("quick")
def test_a_worker_that_can_open_nothing_for_long_is_lost() -> None:
    endpoint, told = AwayEndpoint(), list[str]()

    async def scenario() -> None:
        # The client of discovery and the loop have theirs before.
        task = asyncio.create_task(watch_presence(endpoint, endpoint, told.append, Dropped()))
        with limits.few_descriptors(os.getpid(), SPARE_DESCRIPTORS):
            await asyncio.wait_for(task, 10)

    asyncio.run(scenario())
    assert endpoint.said == ["out"]
    assert told[0].startswith("this worker could not open files")
