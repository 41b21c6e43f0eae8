"""How many connections at a time have not said what they want."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from wavepp_worker.handoff.claim_messages import CancelClaim
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.decode import introductions as module
from wavepp_worker.handoff.decode.introductions import MOST_UNSAID, Introductions

HELLO = CancelClaim(room=1)


class Connecting:
    """In place of ``Channel.connect``: every connection takes until ``go`` is set, and its hello until ``heard`` is."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.sent = self.closed = 0
        self.go, self.heard = asyncio.Event(), asyncio.Event()

    async def connect(self, host: str, port: int, local_host: str, timeout: float) -> Any:
        self.begun.append(port)
        await self.go.wait()
        return self

    async def send(self, message: object) -> None:
        assert message is HELLO
        await self.heard.wait()
        self.sent += 1

    def close(self) -> None:
        self.closed += 1


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_others_of_an_address_wait_until_a_hello_was_sent(monkeypatch: Any) -> None:
    async def run() -> None:
        connecting, introductions = Connecting(), Introductions("here")
        monkeypatch.setattr(Channel, "connect", connecting.connect)
        first = [
            asyncio.ensure_future(introductions.connect("there", 1, HELLO)) for _ in range(3 * MOST_UNSAID)
        ]
        await turns()
        assert connecting.begun == [1] * MOST_UNSAID
        another = asyncio.ensure_future(introductions.connect("there", 2, HELLO))
        connecting.go.set()
        await turns()
        assert connecting.begun == [1] * MOST_UNSAID + [2], "connected is not yet known"
        connecting.heard.set()
        await asyncio.wait_for(asyncio.gather(*first, another), 5)
        assert connecting.sent == 3 * MOST_UNSAID + 1
        assert connecting.closed == 0

    asyncio.run(run())


def test_nobody_waits_for_ever_for_those_that_nobody_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.1)

    async def run() -> None:
        connecting, introductions = Connecting(), Introductions("here")
        monkeypatch.setattr(Channel, "connect", connecting.connect)
        all_of_them = [
            asyncio.ensure_future(introductions.connect("there", 1, HELLO)) for _ in range(MOST_UNSAID + 1)
        ]
        await asyncio.sleep(0.3)
        assert len(connecting.begun) == MOST_UNSAID + 1
        connecting.go.set()
        connecting.heard.set()
        await asyncio.wait_for(asyncio.gather(*all_of_them), 5)

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["cancelled", "broken"])
def test_who_could_not_say_it_is_closed_and_leaves_its_turn(monkeypatch: Any, ending: str) -> None:
    async def run() -> None:
        connecting, introductions = Connecting(), Introductions("here")
        monkeypatch.setattr(Channel, "connect", connecting.connect)
        connecting.go.set()
        first = [asyncio.ensure_future(introductions.connect("there", 1, HELLO)) for _ in range(MOST_UNSAID)]
        await turns()
        if ending == "broken":
            monkeypatch.setattr(connecting.heard, "wait", lost)
            with pytest.raises(PeerLost):
                await introductions.connect("there", 2, HELLO)
        for each in first:
            each.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        assert connecting.closed == MOST_UNSAID + (ending == "broken")
        monkeypatch.undo()
        monkeypatch.setattr(Channel, "connect", connecting.connect)
        connecting.heard.set()
        await asyncio.wait_for(introductions.connect("there", 1, HELLO), 1)

    async def lost() -> None:
        raise PeerLost("the connection broke")

    asyncio.run(run())
