"""Rooms: claims and prefills meet in any order, each room is answered once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.claim_messages import (
    TO_CLAIMANT,
    CancelClaim,
    ClaimFailed,
    ClaimRoom,
    Offered,
    Prefilled,
)
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.handoff.prefill import bootstrap_server
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.handoff.secret import REFUSAL, Secret

from tests.support.handoff_sides import FIRST, HOST, SECRET

OFFER = Offer(request_id="a", secret=SECRET, prompt_tokens=3, model_id="m", ranks=())


class Rooms:
    def __init__(self, **values: Any) -> None:
        self.cancelled: list[str] = []
        self.server = BootstrapServer(
            HOST, 0, on_cancel=lambda offer: self.cancelled.append(offer.request_id), **values
        )

    async def claim(self, room: int, wait: float = 5.0) -> Channel:
        channel = await Channel.connect(HOST, self.server.port, HOST, 2.0)
        await channel.send(ClaimRoom(room=room, secret=self.server.secret(room), wait=wait))
        return channel


@pytest.fixture
def rooms() -> Iterator[Callable[..., Rooms]]:
    with contextlib.ExitStack() as stack:

        def make(**values: Any) -> Rooms:
            made = Rooms(**values)
            stack.callback(made.server.close)
            return made

        yield make


async def told(channel: Channel) -> Any:
    return await asyncio.wait_for(channel.receive(TO_CLAIMANT), 5)


async def sentence(channel: Channel) -> str:
    message = await told(channel)
    assert isinstance(message, ClaimFailed)
    return message.message


@pytest.mark.parametrize("order", ["claim first", "register first", "all before the claim"])
def test_offer_then_first_token(rooms: Any, until: Any, order: str) -> None:
    at = rooms()

    async def run() -> None:
        if order == "claim first":
            channel = await at.claim(5)
            await asyncio.sleep(0.05)
        at.server.register(5, OFFER)
        if order == "register first":
            channel = await at.claim(5)
        if order == "all before the claim":
            at.server.finish(5, FIRST)
            channel = await at.claim(5)
        assert await told(channel) == Offered(room=5, offer=OFFER)
        if order != "all before the claim":
            at.server.finish(5, FIRST)
        assert await told(channel) == Prefilled(room=5, first=FIRST)
        channel.close()
        await until(lambda: at.server.pending() == 0)
        late = await at.claim(5)
        assert "it has been answered" in await sentence(late)
        late.close()

    asyncio.run(run())
    assert at.cancelled == []


def test_a_second_claim_is_refused_and_the_first_goes_on(rooms: Any) -> None:
    at = rooms()

    async def run() -> None:
        one, other = await at.claim(5), None
        await asyncio.sleep(0.05)
        other = await at.claim(5)
        assert "claimed by another decode worker" in await sentence(other)
        at.server.register(5, OFFER)
        at.server.finish(5, FIRST)
        assert isinstance(await told(one), Offered)
        assert isinstance(await told(one), Prefilled)
        one.close()
        other.close()

    asyncio.run(run())
    assert at.cancelled == []


@pytest.mark.parametrize("how", ["cancel", "drop"])
@pytest.mark.parametrize("when", ["before register", "after offer", "after finish is refused"])
def test_a_claimant_that_leaves_cancels_the_prefill_once(rooms: Any, until: Any, how: str, when: str) -> None:
    at = rooms()

    async def run() -> None:
        channel = await at.claim(5)
        if when != "before register":
            at.server.register(5, OFFER)
            await told(channel)
        await asyncio.sleep(0.05)
        if how == "cancel":
            await channel.send(CancelClaim(room=5))
        else:
            channel.close()
        await asyncio.sleep(0.05)
        if when == "before register":
            assert at.cancelled == []
            at.server.register(5, OFFER)
        await until(lambda: at.cancelled)
        # What the engine says of an aborted request afterwards must not bring the room back.
        if when == "after finish is refused":
            at.server.finish(5, FIRST)
        at.server.fail(5, "aborted")
        await asyncio.sleep(0.05)
        assert at.server.pending() == 0
        channel.close()

    asyncio.run(run())
    assert at.cancelled == ["a"]


@pytest.mark.parametrize("how", ["drop", "cancel"])
def test_after_the_first_token_only_giving_up_cancels(rooms: Any, until: Any, how: str) -> None:
    at = rooms()

    async def run() -> None:
        at.server.register(5, OFFER)
        at.server.finish(5, FIRST)
        channel = await at.claim(5)
        await told(channel)
        await told(channel)
        await until(lambda: at.server.pending() == 0)
        assert at.cancelled == []
        if how == "cancel":
            await channel.send(CancelClaim(room=5))
            await until(lambda: at.cancelled)
        channel.close()
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert at.cancelled == (["a"] if how == "cancel" else [])


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("claimed_first", [True, False])
def test_a_failure_is_told(rooms: Any, until: Any, registered: bool, claimed_first: bool) -> None:
    at = rooms()

    async def run() -> None:
        if claimed_first:
            channel = await at.claim(5)
            await asyncio.sleep(0.05)
        if registered:
            at.server.register(5, OFFER)
        at.server.fail(5, "the prompt is too long; shorten it")
        if not claimed_first:
            channel = await at.claim(5)
        message = await told(channel)
        if isinstance(message, Offered):
            message = await told(channel)
        assert message == ClaimFailed(room=5, message="the prompt is too long; shorten it")
        channel.close()
        await until(lambda: at.server.pending() == 0)

    asyncio.run(run())
    assert at.cancelled == []


def test_a_claim_nobody_prefills_is_told_so_and_a_late_prefill_is_cancelled(
    rooms: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap_server, "UNKNOWN_ROOM_SECONDS", 0.2)
    at = rooms()

    async def run() -> None:
        channel = await at.claim(5)
        assert "no prefill for room 5 reached this worker within 0.2 s" in await sentence(channel)
        channel.close()
        await until(lambda: at.server.pending() == 0)
        at.server.register(5, OFFER)
        await until(lambda: at.cancelled == ["a"])

    asyncio.run(run())


def test_a_prefill_longer_than_the_claim_waits_is_cancelled(rooms: Any, until: Any) -> None:
    at = rooms()

    async def run() -> None:
        at.server.register(5, OFFER)
        channel = await at.claim(5, wait=0.2)
        await told(channel)
        assert "took more than the 0.2 s" in await sentence(channel)
        await until(lambda: at.cancelled == ["a"])
        channel.close()

    asyncio.run(run())


@pytest.mark.parametrize("end", ["open", "finish", "fail", "never"])
def test_a_held_room_is_offered_once_it_is_open(rooms: Any, until: Any, end: str) -> None:
    """Before, the claimant would hold decode blocks for a prefill that still waits for its own."""
    at = rooms()

    async def run() -> None:
        at.server.register(5, OFFER, hold=True)
        channel = await at.claim(5, wait=0.4)
        telling = asyncio.ensure_future(told(channel))
        await asyncio.sleep(0.1)
        assert not telling.done()
        if end == "open":
            at.server.open(5)
            assert await telling == Offered(room=5, offer=OFFER)
        elif end == "finish":
            at.server.finish(5, FIRST)
            assert await telling == Offered(room=5, offer=OFFER)
            assert await told(channel) == Prefilled(room=5, first=FIRST)
        elif end == "fail":
            at.server.fail(5, "no")
            assert await telling == ClaimFailed(room=5, message="no")
        else:
            assert "took more than the 0.4 s" in (await telling).message
        channel.close()
        await until(lambda: at.server.pending() == 0)

    asyncio.run(run())
    assert at.cancelled == (["a"] if end in ("open", "never") else [])


def test_an_outcome_nobody_claims_is_forgotten_but_a_running_prefill_is_not(rooms: Any, until: Any) -> None:
    at = rooms(keep=0.2)

    async def run() -> None:
        at.server.register(1, OFFER)
        at.server.register(2, msgspec.structs.replace(OFFER, request_id="unclaimed"))
        at.server.finish(2, FIRST)
        at.server.fail(3, "no")
        assert (at.server.pending(), at.server.awaited()) == (3, 2)
        await until(lambda: at.server.pending() == 1)
        channel = await at.claim(2)
        assert "nobody claimed it within 0.2 s" in await sentence(channel)
        channel.close()
        await until(lambda: at.cancelled == ["unclaimed"])
        await asyncio.sleep(0.4)
        channel = await at.claim(1)
        assert isinstance(await told(channel), Offered)
        channel.close()
        await until(lambda: at.cancelled == ["unclaimed", "a"])

    asyncio.run(run())


def test_a_room_that_nobody_will_claim_is_over_at_once_and_its_kv_unwanted(rooms: Any, until: Any) -> None:
    at = rooms(keep=60)

    async def run() -> None:
        at.server.register(1, OFFER)
        at.server.finish(1, FIRST)
        at.server.abandon(1)
        at.server.abandon(1)
        assert at.server.pending() == 0
        await until(lambda: at.cancelled == ["a"])
        assert "whoever was to claim it has left" in await sentence(await at.claim(1))

    asyncio.run(run())
    assert at.cancelled == ["a"]


def test_a_room_is_used_once(rooms: Any, until: Any) -> None:
    at = rooms(keep=0.1)
    at.server.register(5, OFFER)
    with pytest.raises(HandoffError, match="room 5 is in use and cannot be used for request a too"):
        at.server.register(5, OFFER)
    at.server.finish(5, FIRST)
    asyncio.run(until(lambda: at.server.pending() == 0))
    with pytest.raises(HandoffError, match="room 5 cannot be used for request a: nobody claimed it"):
        at.server.register(5, OFFER)


def test_strangers_do_no_harm(rooms: Any) -> None:
    at = rooms()

    async def run() -> None:
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00", b""):
            with socket.create_connection((HOST, at.server.port)) as stranger:
                stranger.sendall(junk)
                await asyncio.sleep(0.02)
        channel = await Channel.connect(HOST, at.server.port, HOST, 2.0)
        await channel.send(CancelClaim(room=5))
        with pytest.raises(PeerLost):
            await told(channel)
        channel.close()
        at.server.register(5, OFFER)
        channel = await at.claim(5)
        assert isinstance(await told(channel), Offered)
        channel.close()

    asyncio.run(run())


def test_an_owner_that_raises_does_not_stop_the_server(until: Any) -> None:
    calls = []

    def cancel(name: str) -> None:
        calls.append(name)
        raise RuntimeError("boom")

    server = BootstrapServer(HOST, 0, on_cancel=cancel)

    async def run() -> None:
        for room in (1, 2):
            server.register(room, OFFER)
            channel = await Channel.connect(HOST, server.port, HOST, 2.0)
            await channel.send(ClaimRoom(room=room, secret=server.secret(room), wait=5.0))
            await told(channel)
            channel.close()
            await until(lambda room=room: len(calls) == room)

    asyncio.run(run())
    server.close()


def test_close_is_bounded_and_repeatable(rooms: Any) -> None:
    at = rooms()

    async def run() -> None:
        channel = await at.claim(5)
        at.server.register(5, OFFER)
        await told(channel)
        began = time.monotonic()
        await asyncio.get_running_loop().run_in_executor(None, at.server.close)
        at.server.close()
        assert time.monotonic() - began < 2
        with pytest.raises(PeerLost):
            await told(channel)
        channel.close()

    asyncio.run(run())
    at.server.fail(5, "too late")


def test_a_port_in_use_is_a_sentence(rooms: Any) -> None:
    port = rooms().server.port
    with pytest.raises(HandoffError, match=f"cannot listen on {HOST}:{port}: .*choose a free port"):
        BootstrapServer(HOST, port, on_cancel=print)


def test_a_held_room_is_offered_only_once_it_is_opened(rooms: Any) -> None:
    at = rooms()

    async def run() -> None:
        channel = await at.claim(5)
        at.server.register(5, OFFER, hold=True)
        waiting = asyncio.ensure_future(told(channel))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        waiting.cancel()
        channel.close()

    asyncio.run(run())

    async def opened() -> None:
        channel = await at.claim(6)
        at.server.register(6, OFFER, hold=True)
        at.server.open(6)
        at.server.open(6)
        assert await told(channel) == Offered(room=6, offer=OFFER)
        at.server.finish(6, FIRST)
        assert await told(channel) == Prefilled(room=6, first=FIRST)
        channel.close()

    asyncio.run(opened())


def test_a_held_room_that_fails_is_never_offered(rooms: Any) -> None:
    at = rooms()

    async def run() -> None:
        channel = await at.claim(5)
        at.server.register(5, OFFER, hold=True)
        at.server.fail(5, "no room was ever found")
        assert await sentence(channel) == "no room was ever found"
        channel.close()

    asyncio.run(run())


@pytest.mark.parametrize("state", ["unknown", "registered", "finished", "claimed", "over"])
def test_without_its_secret_nobody_learns_anything_of_a_room(rooms: Any, state: str) -> None:
    """Nor whether there is one: all are answered alike, hung up on, and change nothing."""
    worker = rooms()

    async def run() -> None:
        own = None
        if state != "unknown":
            worker.server.register(1, OFFER)
        if state in ("finished", "over"):
            worker.server.finish(1, FIRST)
        if state in ("claimed", "over"):
            own = await worker.claim(1)
            assert isinstance(await told(own), Offered)
        if state == "over":
            assert isinstance(await told(own), Prefilled)
            while worker.server.pending():
                await asyncio.sleep(0.01)
        before = worker.server.pending()
        for secret in (Secret.fresh(), worker.server.secret(2), worker.server.key):
            channel = await Channel.connect(HOST, worker.server.port, HOST, 2.0)
            await channel.send(ClaimRoom(room=1, secret=secret, wait=60.0))
            assert await sentence(channel) == REFUSAL
            with pytest.raises(PeerLost):
                await told(channel)
            channel.close()
        assert worker.server.pending() == before
        if own is not None:
            own.close()

    asyncio.run(run())


def test_a_wait_that_is_no_number_is_none(rooms: Any) -> None:
    """A number that is none would confuse the clock of the loop for everybody."""
    worker = rooms()

    async def run() -> None:
        assert "within 0.0 s" in await sentence(await worker.claim(1, wait=float("nan")))
        worker.server.register(2, OFFER)
        waiting = await worker.claim(2, wait=float("inf"))
        assert isinstance(await told(waiting), Offered)
        worker.server.finish(2, FIRST)
        assert isinstance(await told(waiting), Prefilled)
        waiting.close()

    asyncio.run(run())
