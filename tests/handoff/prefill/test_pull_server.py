"""One pull connection at a time, step by step: who gets the KV, and how each way it can end settles it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.prefill import pull_server
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.prefill.holdings import Holdings
from wavepp_worker.handoff.prefill.pull_server import PullServer, ServedPull
from wavepp_worker.handoff.pull_messages import (
    TO_PULLER,
    AllSent,
    CancelPull,
    KvPiece,
    Pull,
    PullFailed,
    PullReceived,
    PullValid,
    RegionsRead,
)
from wavepp_worker.handoff.secret import REFUSAL, Secret

from tests.support.handoff_sides import HOST, SECRET

RANK, WIDTH, TOKENS = 3, 10, 20
SIZE = WIDTH * TOKENS


ADDRESS = RankAddress(
    rank=RANK,
    host=HOST,
    port=1,
    layers=(0, 1),
    block_size=4,
    dtype="float32",
    bytes_per_token=WIDTH,
    transport="socket",
)


class Peer:
    """A receiver that says exactly what the test says; ``serving`` is the server's side of its connection."""

    def __init__(self, server: PullServer) -> None:
        with socket.create_server((HOST, 0)) as listening:
            self.channel = Channel(socket.create_connection(listening.getsockname()), "the server")
            near = Channel(listening.accept()[0], "the peer")
        self.serving = asyncio.ensure_future(self._serve(server, near))

    async def _serve(self, server: PullServer, near: Channel) -> None:
        try:
            await server.serve(near)
        finally:
            near.close()

    async def pull(self, name: str = "a", wait: float = 5.0) -> None:
        await self.channel.send(Pull(request_id=name, secret=SECRET, wait=wait))

    async def next(self) -> Any:
        return await asyncio.wait_for(self.channel.receive(TO_PULLER), 5)

    async def failure(self) -> str:
        message = await self.next()
        assert isinstance(message, PullFailed), message
        return message.message

    async def confirm(self, tokens: int = TOKENS, size: int = SIZE) -> None:
        await self.channel.send(PullReceived(request_id="a", tokens=tokens, size=size))

    async def served(self) -> None:
        """Until the server is done with the connection; raises what serving it raised."""
        await asyncio.wait_for(self.serving, 5)

    async def gone(self) -> bool:
        with contextlib.suppress(PeerLost):
            await self.next()
            return False
        return True


class Rank:
    """A pull server over holdings whose feed sends empty pieces, and a list of what settled how."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, str]] = []
        self.pulls: list[ServedPull] = []
        self.feeding = 0
        self.holdings = Holdings(20.0, lambda name, how: self.settled.append((name, how)))
        self.server = PullServer(ADDRESS, self.holdings, self._feed)
        self.peers: list[Peer] = []
        self.holdings.expect("a", SECRET)

    def hold(self, ready: int = TOKENS) -> HeldKv:
        self.holdings.expect("a", SECRET)
        self.holdings.hold("a", torch.arange(5), TOKENS, ready)
        held = self.holdings.get("a")
        assert held is not None
        return held

    def peer(self) -> Peer:
        self.peers.append(Peer(self.server))
        return self.peers[-1]

    async def pulling(self, ready: int = 8) -> tuple[HeldKv, Peer]:
        """A held request and a peer that has its first piece."""
        held, peer = self.hold(ready), self.peer()
        await peer.pull()
        assert await peer.next() == KvPiece(request_id="a", start=0, end=ready, size=0)
        return held, peer

    async def _feed(self, channel: Channel, pull: ServedPull) -> None:
        self.pulls.append(pull)
        self.feeding += 1
        held = pull.held
        try:
            while await self.holdings.more(held):
                end = held.ready
                await channel.send(KvPiece(request_id=held.request_id, start=held.sent, end=end, size=0))
                held.delivered(end, time.monotonic())
        finally:
            self.feeding -= 1


def on_rank(story: Callable[[Rank], Awaitable[None]]) -> Rank:
    """Run a story and close what it left; no task of the server outlives its connection."""

    async def run() -> Rank:
        rank = Rank()
        try:
            await asyncio.wait_for(story(rank), 20)
        finally:
            for peer in rank.peers:
                peer.channel.close()
            await asyncio.gather(*(peer.serving for peer in rank.peers), return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert rank.feeding == 0
        rank.holdings.check()
        return rank

    return asyncio.run(run())


def test_pieces_then_the_end_then_the_confirmation() -> None:
    async def story(rank: Rank) -> None:
        held, peer = await rank.pulling(8)
        assert held.pulling
        rank.holdings.computed("a", TOKENS)
        assert await peer.next() == KvPiece(request_id="a", start=8, end=TOKENS, size=0)
        assert await peer.next() == AllSent(request_id="a", tokens=TOKENS, size=SIZE)
        assert rank.settled == []
        await peer.confirm()
        assert await peer.next() == PullValid(request_id="a")
        assert rank.settled == [("a", "received")]
        assert await peer.gone()
        await peer.served()

    on_rank(story)


def test_a_pull_may_come_before_the_request_is_held() -> None:
    async def story(rank: Rank) -> None:
        peer = rank.peer()
        await peer.pull()
        await asyncio.sleep(0.05)
        rank.hold()
        assert isinstance(await peer.next(), KvPiece)

    on_rank(story)


def test_a_request_that_is_not_offered_is_refused_after_the_wait_it_came_with() -> None:
    async def story(rank: Rank) -> None:
        peer, began = rank.peer(), time.monotonic()
        await peer.pull(wait=0.2)
        assert await peer.failure() == "rank 3 has no KV of request a: it was not offered within 0.2 s"
        assert 0.15 < time.monotonic() - began < 2
        peer.channel.close()
        await peer.served()
        assert rank.pulls == []

    on_rank(story)


def test_a_settled_request_is_refused_soon_and_with_how_it_settled() -> None:
    async def story(rank: Rank) -> None:
        rank.hold()
        rank.holdings.end("a", "expired")
        peer, began = rank.peer(), time.monotonic()
        await peer.pull(wait=60.0)
        assert await peer.failure() == "rank 3 has no KV of request a: it was expired already"
        assert time.monotonic() - began < 2

    on_rank(story)


@pytest.mark.parametrize("name", ["a", "expected", "settled", "nobody"])
def test_without_its_secret_nobody_learns_anything_of_a_request(name: str) -> None:
    """Nor whether there is one: all are answered alike, hung up on, and change nothing."""

    async def story(rank: Rank) -> None:
        held = rank.hold()
        for other in ("expected", "settled"):
            rank.holdings.expect(other, SECRET)
        rank.holdings.hold("settled", torch.arange(5), TOKENS, TOKENS)
        rank.holdings.end("settled", "expired")
        rank.settled.clear()
        peer, began = rank.peer(), time.monotonic()
        await peer.channel.send(Pull(request_id=name, secret=Secret.fresh(), wait=60.0))
        assert await peer.failure() == REFUSAL
        peer.channel.close()
        with pytest.raises(HandoffError, match="name and secret that do not belong together"):
            await peer.served()
        assert time.monotonic() - began < 2
        assert (rank.pulls, held.pulling, rank.settled) == ([], False, [])

    on_rank(story)


def test_a_secret_of_an_earlier_request_of_the_same_id_is_worth_nothing() -> None:
    async def story(rank: Rank) -> None:
        rank.hold()
        rank.holdings.end("a", "withdrawn")
        rank.holdings.expect("a", Secret.fresh())
        peer = rank.peer()
        await peer.pull()
        assert await peer.failure() == REFUSAL

    on_rank(story)


def test_a_refused_peer_may_close_first_and_is_dropped_if_it_stays(monkeypatch: Any) -> None:
    """Closing under what it sends meanwhile would reset the connection, which may overtake the refusal."""
    monkeypatch.setattr(pull_server, "STOP_SECONDS", 0.3)

    async def story(rank: Rank) -> None:
        peer = rank.peer()
        await peer.pull(wait=0.0)
        await peer.failure()
        await asyncio.sleep(0.1)
        assert not peer.serving.done()
        await peer.served()
        assert await peer.gone()

    on_rank(story)


def test_a_peer_that_goes_while_it_waits_is_let_go_at_once() -> None:
    async def story(rank: Rank) -> None:
        peer = rank.peer()
        await peer.pull(wait=60.0)
        await asyncio.sleep(0.05)
        peer.channel.close()
        await peer.served()
        held = rank.hold()
        await asyncio.sleep(0.05)
        assert not held.pulling
        assert rank.pulls == []

    on_rank(story)


def test_a_peer_that_says_nothing_or_something_else_first(monkeypatch: Any) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.connection.channel.HELLO_SECONDS", 0.1)

    async def story(rank: Rank) -> None:
        held, silent = rank.hold(), rank.peer()
        await silent.served()
        rude = rank.peer()
        await rude.channel.send(CancelPull(request_id="a"))
        with pytest.raises(HandoffError, match="began with CancelPull instead of Pull"):
            await rude.served()
        assert not held.pulling
        assert rank.settled == []

    on_rank(story)


def test_a_peer_lost_in_the_middle_settles_nothing_and_the_next_starts_over() -> None:
    async def story(rank: Rank) -> None:
        held, peer = await rank.pulling(8)
        peer.channel.close()
        await peer.served()
        assert (held.pulling, held.ending, rank.feeding) == (False, None, 0)
        again = rank.peer()
        await again.pull()
        assert (await again.next()).start == 0
        rank.holdings.computed("a", TOKENS)
        assert (await again.next()).end == TOKENS
        assert isinstance(await again.next(), AllSent)
        await again.confirm()
        assert isinstance(await again.next(), PullValid)
        assert rank.settled == [("a", "received")]

    on_rank(story)


def test_a_newer_connection_takes_over_once_the_older_has_stopped() -> None:
    async def story(rank: Rank) -> None:
        held, older = await rank.pulling(8)
        newer = rank.peer()
        await newer.pull()
        assert (await newer.next()).start == 0
        assert rank.feeding == 1
        assert await older.gone()
        assert held.pulling, "the older one's end must not count as the newer one's"
        rank.holdings.computed("a", TOKENS)
        assert (await newer.next()).end == TOKENS

    on_rank(story)


def test_an_older_connection_that_stops_late_does_not_undo_the_takeover(monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_server, "STOP_SECONDS", 0.05)

    async def story(rank: Rank) -> None:
        async def feed(channel: Channel, pull: ServedPull) -> None:
            rank.pulls.append(pull)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.3 / len(rank.pulls))

        rank.server = PullServer(ADDRESS, rank.holdings, feed)
        held, older, newer = rank.hold(), rank.peer(), rank.peer()
        await older.pull()
        while not rank.pulls:
            await asyncio.sleep(0.005)
        await newer.pull()
        await asyncio.wait({older.serving}, timeout=5)
        assert older.serving.cancelled()
        assert len(rank.pulls) == 2
        assert held.pulling

    on_rank(story)


def test_a_feed_that_loses_its_peer_settles_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_server, "STOP_SECONDS", 0.05)

    async def story(rank: Rank) -> None:
        async def cut_off(channel: Channel, pull: ServedPull) -> None:
            raise PeerLost("the cable was pulled")

        rank.server = PullServer(ADDRESS, rank.holdings, cut_off)
        held, peer = rank.hold(), rank.peer()
        await peer.pull()
        await peer.served()
        assert (held.pulling, held.ending) == (False, None)
        assert rank.settled == []

    on_rank(story)


@pytest.mark.parametrize("ready", [8, TOKENS])
def test_a_withdrawal_is_told(ready: int) -> None:
    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(ready)
        if ready == TOKENS:
            assert isinstance(await peer.next(), AllSent)
        rank.holdings.end("a", "withdrawn")
        sentence = "rank 3 no longer holds the KV of request a (withdrawn): it was given up"
        assert await peer.failure() == sentence

    assert on_rank(story).settled == [("a", "withdrawn")]


def test_an_expiry_is_told() -> None:
    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(8)
        rank.holdings.end("a", "expired")
        assert (await peer.failure()).startswith(
            "rank 3 no longer holds the KV of request a (expired): nobody asked for it for 20.0 s"
        )

    assert on_rank(story).settled == [("a", "expired")]


def test_a_feed_that_breaks_fails_its_request_only() -> None:
    async def story(rank: Rank) -> None:
        async def broken(channel: Channel, pull: ServedPull) -> None:
            raise RuntimeError("the device is gone")

        rank.server = PullServer(ADDRESS, rank.holdings, broken)
        rank.hold()
        rank.holdings.expect("b", SECRET)
        rank.holdings.hold("b", torch.arange(5), TOKENS, 0)
        peer = rank.peer()
        await peer.pull()
        assert (await peer.failure()).endswith("of request a (failed): the device is gone")
        assert rank.settled == [("a", "failed")]

    on_rank(story)


def test_a_peer_that_does_not_want_it_any_more_stops_the_feed() -> None:
    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(8)
        await peer.channel.send(CancelPull(request_id="a"))
        await peer.served()
        assert rank.feeding == 0
        assert await peer.gone()

    assert on_rank(story).settled == [("a", "withdrawn")]


def test_a_late_farewell_does_not_end_the_next_request_of_the_same_id() -> None:
    """S38: what was withdrawn is prefilled again while the first receiver still says goodbye."""

    async def story(rank: Rank) -> None:
        _, late = await rank.pulling(8)
        rank.holdings.end("a", "withdrawn")
        assert "(withdrawn)" in await late.failure()
        again = rank.hold(8)
        await late.channel.send(CancelPull(request_id="a"))
        await late.served()
        assert again.ending is None

    assert on_rank(story).settled == [("a", "withdrawn")]


def test_a_feed_that_breaks_late_does_not_end_the_next_request_of_the_same_id() -> None:
    async def story(rank: Rank) -> None:
        async def broken(channel: Channel, pull: ServedPull) -> None:
            await rank.holdings.changed.wait_for(lambda: pull.held.ending)
            rank.hold()
            raise RuntimeError("the device is gone")

        rank.server = PullServer(ADDRESS, rank.holdings, broken)
        held, peer = rank.hold(), rank.peer()
        await peer.pull()
        while not held.pulling:
            await asyncio.sleep(0)
        rank.holdings.end("a", "withdrawn")
        assert (await peer.failure()).endswith("of request a (withdrawn): the device is gone")
        again = rank.holdings.get("a")
        assert again is not None
        assert again.ending is None

    assert on_rank(story).settled == [("a", "withdrawn")]


@pytest.mark.parametrize(("tokens", "size"), [(TOKENS - 1, SIZE), (TOKENS, SIZE - 1), (TOKENS + 1, SIZE)])
def test_a_wrong_confirmation_fails_the_request(tokens: int, size: int) -> None:
    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(TOKENS)
        assert isinstance(await peer.next(), AllSent)
        await peer.confirm(tokens, size)
        sentence = await peer.failure()
        assert f"(failed): it confirms {tokens} tokens in {size} bytes instead of (20, 200)" in sentence

    assert on_rank(story).settled == [("a", "failed")]


def test_a_confirmation_before_everything_is_sent_fails_the_request() -> None:
    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(8)
        await peer.confirm()
        assert "(failed): it confirms 20 tokens" in await peer.failure()

    assert on_rank(story).settled == [("a", "failed")]


def test_a_confirmation_after_the_end_is_not_taken() -> None:
    """The blocks may be someone else's by now, so what was read must not be used."""

    async def story(rank: Rank) -> None:
        _, peer = await rank.pulling(TOKENS)
        assert isinstance(await peer.next(), AllSent)
        rank.holdings.end("a", "expired")
        await peer.confirm()
        answers = [await peer.next(), await peer.next()]
        assert {type(answer) for answer in answers} == {PullFailed}
        await peer.served()

    assert on_rank(story).settled == [("a", "expired")]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (PullReceived(request_id="b", tokens=TOKENS, size=SIZE), "for request 'b' arrived on the connection"),
        (CancelPull(request_id="b"), "for request 'b' arrived on the connection of request 'a'"),
        (Pull(request_id="a", secret=SECRET, wait=1.0), "pulls request a twice over one connection"),
        (RegionsRead(request_id="a", end=8), "says it read up to token 8, which it was not told to"),
    ],
)
def test_what_does_not_belong_ends_the_connection_but_not_the_request(message: Any, sentence: str) -> None:
    async def story(rank: Rank) -> None:
        held, peer = await rank.pulling(8)
        await peer.channel.send(message)
        with pytest.raises(HandoffError, match=sentence):
            await peer.served()
        assert (held.pulling, held.ending, held.sent) == (False, None, 8)
        assert rank.settled == []

    on_rank(story)


async def told_to_read(rank: Rank, end: int = 8) -> tuple[HeldKv, Peer]:
    """A peer that was told where tokens ``[0, end)`` are and reads them now, as a ``NixlSource`` does it."""

    async def feed(channel: Channel, pull: ServedPull) -> None:
        rank.pulls.append(pull)
        while await rank.holdings.more(pull.held):
            pull.held.begin_read()
            pull.reading = True
            await channel.send(KvPiece(request_id="a", start=pull.held.sent, end=pull.held.ready, size=0))
            await rank.holdings.changed.wait_for(lambda: pull.held.ending or not pull.reading)

    rank.server = PullServer(ADDRESS, rank.holdings, feed)
    held, peer = await rank.pulling(end)
    assert rank.server.reading()
    return held, peer


def test_what_was_read_counts_as_delivered() -> None:
    async def story(rank: Rank) -> None:
        held, peer = await told_to_read(rank, 8)
        await peer.channel.send(RegionsRead(request_id="a", end=8))
        rank.holdings.computed("a", TOKENS)
        assert (await peer.next()).start == 8
        assert (held.sent, held.readers) == (8, 1)
        await peer.channel.send(RegionsRead(request_id="a", end=TOKENS))
        assert isinstance(await peer.next(), AllSent)
        assert (held.sent, held.readers, rank.server.reading()) == (TOKENS, 0, False)
        await peer.confirm()
        assert isinstance(await peer.next(), PullValid)

    assert on_rank(story).settled == [("a", "received")]


@pytest.mark.parametrize("end", [0, 9])
def test_a_read_of_what_was_not_offered_is_refused(end: int) -> None:
    async def story(rank: Rank) -> None:
        held, peer = await told_to_read(rank, 8)
        await peer.channel.send(RegionsRead(request_id="a", end=end))
        with pytest.raises(HandoffError, match=f"read up to token {end}, which it was not told to"):
            await peer.served()
        assert (held.sent, held.readers, rank.server.reading()) == (0, 0, False)

    on_rank(story)


def test_a_read_that_ends_twice_is_refused() -> None:
    async def story(rank: Rank) -> None:
        held, peer = await told_to_read(rank, 8)
        for end in (5, 8):
            await peer.channel.send(RegionsRead(request_id="a", end=end))
        with pytest.raises(HandoffError, match="read up to token 8, which it was not told to"):
            await peer.served()
        assert (held.sent, held.readers) == (5, 0)

    on_rank(story)


def test_a_reader_that_vanishes_does_not_read_any_more() -> None:
    async def story(rank: Rank) -> None:
        held, peer = await told_to_read(rank)
        peer.channel.close()
        await peer.served()
        assert (held.readers, held.ending) == (0, None)

    on_rank(story)


def test_a_reader_that_does_not_stop_is_waited_for_and_then_counted_off(monkeypatch: Any) -> None:
    monkeypatch.setattr(pull_server, "STOP_SECONDS", 0.3)

    async def story(rank: Rank) -> None:
        _, peer = await told_to_read(rank)
        rank.holdings.end("a", "withdrawn")
        assert "(withdrawn)" in await peer.failure()
        await asyncio.sleep(0.1)
        assert rank.settled == [], "it may still read"
        await peer.served()
        assert rank.settled == [("a", "withdrawn")]
        assert await peer.gone(), "and is never told that what it read is valid"

    on_rank(story)


def test_a_reader_that_stops_when_told_to_settles_at_once() -> None:
    async def story(rank: Rank) -> None:
        _, peer = await told_to_read(rank)
        rank.holdings.end("a", "withdrawn")
        assert "(withdrawn)" in await peer.failure()
        await peer.channel.send(CancelPull(request_id="a"))
        await peer.served()

    assert on_rank(story).settled == [("a", "withdrawn")]
