"""A replica that others may have counted as gone, among peers that are fakes; with a server: ``test_queue_peers``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake import membership
from wavepp_worker.intake.membership import Membership
from wavepp_worker.intake.queue_peers import QueuePeers

SILENCE = 0.5


class Peers:
    """Says what it is told to, or that nobody hinders.

    Attributes:
        losses: as of ``QueuePeers``.
        failures: of the next questions.
        asked: how often it was asked.
        heard: set while it is heard; what asks meanwhile waits.
    """

    def __init__(self, *failures: Exception) -> None:
        self.losses = 0
        self.failures = list(failures)
        self.asked = 0
        self.heard = asyncio.Event()
        self.heard.set()

    async def is_heard(self) -> bool:
        await self.heard.wait()
        return True

    async def ask_again(self) -> None:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(membership, "AGAIN_SECONDS", 0.01)


def watched(peers: Peers, then: Callable[[Membership], Awaitable[None]]) -> int:
    """How often the queue was made while ``then`` ran."""
    made = 0

    async def make_queue() -> None:
        nonlocal made
        made += 1

    async def run() -> None:
        own = Membership(cast(QueuePeers, peers), SILENCE, make_queue, "; nothing is taken")
        watching = asyncio.create_task(own.watch())
        await then(own)
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())
    return made


async def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 5
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.005)


def test_who_is_always_there_is_not_asked_again() -> None:
    peers = Peers()

    async def then(own: Membership) -> None:
        await asyncio.sleep(0.2)
        assert own.holds

    assert watched(peers, then) == 0
    assert peers.asked == 0


def test_who_lost_the_server_takes_nothing_until_it_has_asked(caplog: pytest.LogCaptureFixture) -> None:
    other = "replica r9 takes jobs with other weights"
    peers = Peers(OSError("no answer"), ConfigError(other), ConfigError(other))

    async def then(own: Membership) -> None:
        peers.losses += 1
        assert not own.holds
        await until(lambda: own.holds)

    assert watched(peers, then) == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"the queue is not open any more ({other}), and tried again; nothing is taken",
        "the queue is open again",
    ]


def test_who_stood_still_for_longer_than_others_wait_takes_nothing_until_it_has_asked() -> None:
    peers = Peers()

    async def then(own: Membership) -> None:
        time.sleep(2 * SILENCE)
        assert not own.holds
        await until(lambda: own.holds)

    watched(peers, then)
    assert peers.asked == 1


@pytest.mark.parametrize("back_after", [1.2 * SILENCE, 3 * SILENCE])
def test_who_is_not_heard_takes_nothing_until_it_has_asked(back_after: float) -> None:
    peers = Peers()

    async def then(own: Membership) -> None:
        await asyncio.sleep(SILENCE / 2)
        cut_off = time.monotonic()
        peers.heard.clear()
        await until(lambda: not own.holds)
        assert time.monotonic() - cut_off < SILENCE + 0.2
        await asyncio.sleep(max(0.0, cut_off + back_after - time.monotonic()))
        assert not own.holds
        peers.heard.set()
        await until(lambda: own.holds)

    watched(peers, then)
    assert peers.asked


def test_who_is_heard_late_but_in_time_goes_on() -> None:
    peers = Peers()

    async def then(own: Membership) -> None:
        for _ in range(3):
            peers.heard.clear()
            await asyncio.sleep(SILENCE / 3)
            peers.heard.set()
            await asyncio.sleep(SILENCE / 3)
            assert own.holds

    watched(peers, then)
    assert peers.asked == 0


def test_a_host_that_was_suspended_takes_nothing_until_it_has_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, real, suspended = Peers(), time.clock_gettime, 0.0
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: real(which) + suspended * (which == time.CLOCK_BOOTTIME)
    )

    async def then(own: Membership) -> None:
        nonlocal suspended
        await asyncio.sleep(0.05)
        assert own.holds
        suspended = 2 * SILENCE
        assert not own.holds
        await until(lambda: own.holds)

    watched(peers, then)
    assert peers.asked == 1
