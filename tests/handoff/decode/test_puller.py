"""One rank's layers, pulled from a rank that says exactly what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from wavepp_worker.errors import ConfigError, HandoffError
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.decode import puller as module
from wavepp_worker.handoff.decode.puller import PULL_ATTEMPTS, Puller, PullRefused
from wavepp_worker.handoff.offer import Offer, RankAddress
from wavepp_worker.handoff.pull_messages import (
    FROM_PULLER,
    PIECE_BYTES,
    AllSent,
    CancelPull,
    KvPiece,
    KvRegions,
    NixlAgent,
    Pull,
    PullFailed,
    PullReceived,
    PullValid,
    RegionsRead,
    StatePiece,
)

from tests.support.handoff_sides import HOST, MODEL, SECRET, FakeKV

TOKENS = 9
AGENT = NixlAgent(request_id="a", metadata=b"m", memory="DRAM", device=0)
REGIONS = KvRegions(request_id="a", start=0, end=TOKENS, sizes=(), addresses=b"")


class Rank:
    """Layers 2 to 4 of 5, and one script per connection; a script that ends closes its connection."""

    def __init__(self, scripts: list[Callable[[Rank, Channel], Awaitable[None]]]) -> None:
        self.kv, self.table = FakeKV(range(2, 5), 16, 4), torch.tensor([5, 1, 9])
        self.kv.write(self.table, 0, TOKENS, 1)
        self.target, self.own_table = FakeKV(range(5), 16, 3), torch.tensor([7, 2, 11])
        self.width = self.kv.bytes_per_token
        self.size = TOKENS * self.width
        self.connections = 0
        self.said: list[Any] = []
        self._scripts = scripts
        self._sock = socket.create_server((HOST, 0))
        self._sock.setblocking(False)
        self.address = RankAddress(
            rank=3,
            host=HOST,
            port=self._sock.getsockname()[1],
            layers=(2, 5),
            block_size=4,
            dtype="float32",
            bytes_per_token=self.width,
            transport="socket",
        )
        self.offer = Offer(
            request_id="a", secret=SECRET, prompt_tokens=TOKENS, model_id=MODEL, ranks=(self.address,)
        )

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            for script in self._scripts:
                connection, _ = await loop.sock_accept(self._sock)
                self.connections += 1
                channel = Channel(connection, "the puller")
                try:
                    self.said.append(await channel.receive(FROM_PULLER))
                    await script(self, channel)
                finally:
                    channel.close()
        finally:
            self._sock.close()

    async def piece(self, channel: Channel, start: int, end: int, **values: Any) -> None:
        payload = self.kv.export_tokens(self.table, start, min(end, TOKENS)).numpy().data
        fields = {"request_id": "a", "start": start, "end": end, "size": len(payload), **values}
        await channel.send(KvPiece(**fields))
        await channel.send_raw(payload)

    async def everything(self, channel: Channel) -> None:
        await self.piece(channel, 0, 4)
        await self.piece(channel, 4, TOKENS)
        await channel.send(AllSent(request_id="a", tokens=TOKENS, size=self.size))

    async def hear(self, channel: Channel) -> Any:
        self.said.append(await asyncio.wait_for(channel.receive(FROM_PULLER), 5))
        return self.said[-1]

    def missing(self) -> int:
        """Rows of the rank's layers that are not in the target's blocks."""
        mine = FakeKV(range(2, 5), 16, 3)
        mine.pools = self.target.pools[4:]
        return mine.wrong(self.own_table, 0, TOKENS, 1)


Script = Callable[[Rank, Channel], Awaitable[None]]


async def all_of_it(rank: Rank, channel: Channel) -> None:
    await rank.everything(channel)
    await rank.hear(channel)
    await channel.send(PullValid(request_id="a"))


async def nothing(rank: Rank, channel: Channel) -> None:
    """Gone before it sent anything."""


async def half(rank: Rank, channel: Channel) -> None:
    """Gone in the middle of a piece's bytes."""
    await rank.piece(channel, 0, 4)
    await channel.send(KvPiece(request_id="a", start=4, end=TOKENS, size=5 * rank.width))
    await channel.send_raw(memoryview(bytes(rank.width)))


async def no_answer(rank: Rank, channel: Channel) -> None:
    """Gone between the confirmation and its answer."""
    await rank.everything(channel)
    await rank.hear(channel)


def silent(rank: Rank, channel: Channel) -> Awaitable[Any]:
    """Says nothing and listens until the puller has said one thing more."""
    return rank.hear(channel)


def there(table: torch.Tensor) -> asyncio.Future[torch.Tensor]:
    """Blocks that need not be waited for."""
    future: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
    future.set_result(table)
    return future


def pull(*scripts: Script, latest: float = 60.0, during: Any = None, setup: Any = None) -> tuple[Rank, Any]:
    """Pull from a rank with these scripts; returns it and what ``pull`` returned or raised.

    Args:
        during: called with the rank and the pulling task while it runs.
    """

    async def run() -> tuple[Rank, Any]:
        rank = Rank(list(scripts))
        if setup is not None:
            setup(rank)
        puller = Puller(rank.target, HOST)
        serving = asyncio.ensure_future(rank.serve())
        pulling = asyncio.ensure_future(
            puller.pull(rank.offer, rank.address, there(rank.own_table), time.monotonic() + latest)
        )
        try:
            if during is not None:
                await during(rank, pulling)
            (result,) = await asyncio.wait_for(asyncio.gather(pulling, return_exceptions=True), 10)
            if rank.connections == len(scripts):
                await asyncio.wait_for(serving, 5)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            puller.close()
            puller.close()
        return rank, result

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)


def test_the_layers_arrive_in_this_workers_blocks_and_are_confirmed() -> None:
    rank, size = pull(all_of_it, latest=7.0)
    assert size == rank.size
    assert rank.missing() == 0
    asked, confirmed = rank.said
    assert asked.request_id == "a"
    assert 6.0 < asked.wait <= 7.0
    assert confirmed == PullReceived(request_id="a", tokens=TOKENS, size=rank.size)
    assert all((pool == -1).all() for pool in rank.target.pools[:4]), "other ranks' layers are not touched"


def test_a_pull_that_is_late_already_waits_for_nothing() -> None:
    rank, _ = pull(all_of_it, latest=-5.0)
    assert rank.said[0] == Pull(request_id="a", secret=SECRET, wait=0.0)


def test_a_refusal_is_passed_on_and_not_tried_again() -> None:
    async def refuses(rank: Rank, channel: Channel) -> None:
        await channel.send(PullFailed(request_id="a", message="it was expired already"))
        await rank.hear(channel)

    rank, error = pull(refuses, all_of_it)
    assert isinstance(error, PullRefused)
    assert str(error) == "it was expired already"
    assert rank.connections == 1
    assert rank.said[1] == CancelPull(request_id="a")


@pytest.mark.parametrize("lost", [nothing, half, no_answer])
def test_a_rank_that_is_lost_is_asked_again_from_token_0(lost: Script) -> None:
    rank, size = pull(lost, lost, all_of_it)
    assert size == rank.size
    assert rank.connections == 3
    assert rank.missing() == 0
    assert not any(isinstance(message, CancelPull) for message in rank.said)


@pytest.mark.parametrize("lost", [nothing, half, no_answer])
def test_a_rank_is_not_asked_for_ever(lost: Script) -> None:
    rank, error = pull(*[lost] * PULL_ATTEMPTS, all_of_it)
    assert type(error) is HandoffError
    assert f"request a: rank 3 at {HOST}:{rank.address.port} was lost {PULL_ATTEMPTS} times" in str(error)
    assert rank.connections == PULL_ATTEMPTS


def test_each_attempt_waits_longer_than_the_one_before(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.1)
    began = time.monotonic()
    pull(nothing, nothing, all_of_it)
    assert 0.3 <= time.monotonic() - began < 2


def shaped(*sent: Callable[[Rank, Channel], Awaitable[None]]) -> Script:
    """A rank that sends these, then listens."""

    async def script(rank: Rank, channel: Channel) -> None:
        for send in sent:
            await send(rank, channel)
        await rank.hear(channel)

    return script


def piece(start: int, end: int, **values: Any) -> Script:
    return lambda rank, channel: rank.piece(channel, start, end, **values)


def said(message: Any) -> Script:
    return lambda rank, channel: channel.send(message)


WRONG = {
    "another request": ([piece(0, 4, request_id="b")], "for request 'b' arrived on .* of request 'a'"),
    "a gap": ([piece(0, 4), piece(5, 9)], "sent KvPiece out of order at token 4 of 9"),
    "again": ([piece(0, 4), piece(0, 4)], "sent KvPiece out of order at token 4 of 9"),
    "nothing in it": (
        [piece(0, 4), said(KvPiece(request_id="a", start=4, end=4, size=0))],
        "sent KvPiece out of order at token 4 of 9",
    ),
    "beyond the prompt": ([piece(0, 10)], "sent KvPiece out of order at token 0 of 9"),
    "too few bytes": ([piece(0, 4, size=7)], "sends tokens 0 to 4 in 7 bytes; they take"),
    "regions out of order": (
        [said(AGENT), said(KvRegions(request_id="a", start=4, end=9, sizes=(), addresses=b""))],
        "sent KvRegions out of order at token 0 of 9",
    ),
    "a state too early": (
        [piece(0, 4), said(StatePiece(request_id="a", size=4))],
        "sent StatePiece out of order at token 4 of 9",
    ),
    "a state that it did not offer": (
        [piece(0, 9), said(StatePiece(request_id="a", size=4))],
        "sends a state in 4 bytes, where 0 were offered",
    ),
    "regions of no agent": ([said(REGIONS)], "rank 3 sent regions before its NIXL agent"),
    "valid too early": ([piece(0, 4), said(PullValid(request_id="a"))], "PullValid out of order at token 4"),
    "the end too early": (
        [piece(0, 4), said(AllSent(request_id="a", tokens=TOKENS, size=1))],
        "ended after 9 tokens in 1 bytes; 4 tokens in .* bytes came, 9 in .* were due",
    ),
    "the end of a part": (
        [piece(0, 4), lambda r, c: c.send(AllSent(request_id="a", tokens=4, size=4 * r.width))],
        "ended after 4 tokens in .* bytes; 4 tokens in .* bytes came, 9 in .* were due",
    ),
    "wrong tokens at the end": (
        [piece(0, TOKENS), lambda r, c: c.send(AllSent(request_id="a", tokens=8, size=r.size))],
        "ended after 8 tokens in",
    ),
    "wrong bytes at the end": (
        [piece(0, TOKENS), lambda r, c: c.send(AllSent(request_id="a", tokens=TOKENS, size=r.size + 1))],
        "ended after 9 tokens in .* bytes; 9 tokens in .* bytes came",
    ),
    "the end of another request": (
        [piece(0, TOKENS), lambda r, c: c.send(AllSent(request_id="b", tokens=TOKENS, size=r.size))],
        "for request 'b' arrived",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_due_is_refused_once_and_cancelled(case: str) -> None:
    sent, sentence = WRONG[case]
    rank, error = pull(shaped(*sent), all_of_it)
    assert type(error) is HandoffError
    with pytest.raises(HandoffError, match=sentence):
        raise error
    assert rank.connections == 1
    assert rank.said[-1] == CancelPull(request_id="a")


def test_a_piece_larger_than_any_may_be_is_refused_before_it_is_received() -> None:
    def wide(rank: Rank) -> None:
        rank.offer = Offer(request_id="a", secret=SECRET, prompt_tokens=1 << 20, model_id=MODEL, ranks=())

    async def sends(rank: Rank, channel: Channel) -> None:
        tokens = PIECE_BYTES // rank.width + 1
        await channel.send(KvPiece(request_id="a", start=0, end=tokens, size=tokens * rank.width))
        await rank.hear(channel)

    _, error = pull(sends, setup=wide)
    assert f"at most {PIECE_BYTES} may come at once" in str(error)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (PullFailed(request_id="a", message="it expired"), "did not take the confirmation: it expired"),
        (AGENT, "did not take the confirmation: NixlAgent"),
        (PullValid(request_id="b"), "for request 'b' arrived"),
    ],
)
def test_kv_whose_confirmation_is_not_taken_is_not_used(answer: Any, sentence: str) -> None:
    async def refuses(rank: Rank, channel: Channel) -> None:
        await rank.everything(channel)
        await rank.hear(channel)
        await channel.send(answer)
        await rank.hear(channel)

    rank, error = pull(refuses, all_of_it)
    assert isinstance(error, HandoffError)
    assert sentence in str(error)
    assert rank.connections == 1
    assert rank.said[-1] == CancelPull(request_id="a")


def test_kv_that_cannot_be_written_is_an_error_and_cancelled() -> None:
    def broken(rank: Rank) -> None:
        def fail(start: int, end: int) -> None:
            raise RuntimeError("the device is gone")

        rank.target.before_import = fail

    rank, error = pull(shaped(piece(0, 4)), all_of_it, setup=broken)
    assert isinstance(error, RuntimeError)
    assert rank.said[-1] == CancelPull(request_id="a")
    assert rank.connections == 1


def test_cancelling_tells_the_rank() -> None:
    async def cancel(rank: Rank, pulling: asyncio.Future[int]) -> None:
        while not rank.said:
            await asyncio.sleep(0.005)
        pulling.cancel()

    rank, result = pull(silent, during=cancel)
    assert isinstance(result, asyncio.CancelledError)
    assert rank.said[1:] == [CancelPull(request_id="a")]


def test_a_rank_that_does_not_listen_cannot_hold_up_a_cancelled_pull(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.1)
    took = []

    async def deaf(rank: Rank, channel: Channel) -> None:
        await asyncio.sleep(1.0)

    async def cancel(rank: Rank, pulling: asyncio.Future[int]) -> None:
        while not rank.said:
            await asyncio.sleep(0.005)
        began = time.monotonic()
        pulling.cancel()
        await asyncio.wait({pulling})
        took.append(time.monotonic() - began)

    _, result = pull(deaf, during=cancel)
    assert isinstance(result, asyncio.CancelledError)
    assert took[0] < 0.7


def test_cancelling_waits_for_the_write_that_runs() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(rank: Rank) -> None:
        def wait(start: int, end: int) -> None:
            entered.set()
            leave.wait(5)

        rank.target.before_import = wait

    async def cancel(rank: Rank, pulling: asyncio.Future[int]) -> None:
        while not entered.is_set():
            await asyncio.sleep(0.005)
        pulling.cancel()
        await asyncio.sleep(0.05)
        assert not pulling.done()
        leave.set()

    rank, result = pull(shaped(piece(0, TOKENS)), setup=slow, during=cancel)
    assert isinstance(result, asyncio.CancelledError)
    assert rank.missing() == 0, "the write ended, not the wait for it"


class Reader:
    """Stands for ``NixlReader``: copies nothing, and does what ``behave`` does with its stop signal."""

    made: list[Reader]
    behave: Callable[[threading.Event], None]

    def __init__(self, kv: Any, host: str) -> None:
        self.closed = self.forgotten = 0
        Reader.made.append(self)

    def read(
        self, agent: Any, regions: Any, rank: Any, prompt_tokens: int, table: Any, stop: threading.Event
    ) -> bool:
        assert (agent, regions, rank.rank) == (AGENT, REGIONS, 3)
        Reader.behave(stop)
        return not stop.is_set()

    def forget(self, agent: Any) -> None:
        assert agent == AGENT
        self.forgotten += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def reader(monkeypatch: Any) -> type[Reader]:
    monkeypatch.setattr(module, "NixlReader", Reader)
    Reader.made, Reader.behave = [], staticmethod(lambda stop: None)
    return Reader


async def regions(rank: Rank, channel: Channel) -> None:
    await channel.send(AGENT)
    await channel.send(REGIONS)
    await rank.hear(channel)
    await channel.send(AllSent(request_id="a", tokens=TOKENS, size=rank.size))
    await rank.hear(channel)
    await channel.send(PullValid(request_id="a"))


def test_what_nixl_has_read_is_said_and_confirmed(reader: Any) -> None:
    rank, size = pull(regions)
    assert size == rank.size
    assert rank.said[1] == RegionsRead(request_id="a", end=TOKENS)
    assert rank.said[2] == PullReceived(request_id="a", tokens=TOKENS, size=rank.size)
    assert len(reader.made) == 1
    assert reader.made[0].closed >= 1


def test_a_nixl_read_that_breaks_is_tried_again(reader: Any) -> None:
    tries = []

    def breaks_once(stop: threading.Event) -> None:
        tries.append(stop)
        if len(tries) == 1:
            raise PeerLost("the transfer broke")

    reader.behave = staticmethod(breaks_once)

    async def first(rank: Rank, channel: Channel) -> None:
        await channel.send(AGENT)
        await channel.send(REGIONS)
        with pytest.raises(PeerLost):
            await rank.hear(channel)  # A ``CancelPull`` would have the rank let go before the next try.

    rank, size = pull(first, regions)
    assert size == rank.size
    assert (len(tries), rank.connections, len(reader.made)) == (2, 2, 1)
    assert reader.made[0].forgotten == 1, "a rank that was lost may never come back"


def test_what_fails_after_it_was_cancelled_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    started = threading.Event()

    def fail() -> None:
        started.set()
        time.sleep(0.1)
        raise HandoffError("the rank is gone")

    async def cancelled() -> None:
        puller = Puller(FakeKV(range(2), 16, 3), HOST)
        running = asyncio.create_task(puller._in_thread(fail, None))
        while not started.is_set():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        puller.close()

    asyncio.run(cancelled())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_cancelling_stops_the_nixl_read_before_the_rank_is_told(reader: Any) -> None:
    """The rank lets go of its blocks when it hears ``CancelPull``: nothing may read them then."""
    entered, left = threading.Event(), threading.Event()

    def reads(stop: threading.Event) -> None:
        entered.set()
        assert stop.wait(5)
        time.sleep(0.05)
        left.set()

    reader.behave = staticmethod(reads)
    ended_first = []

    async def offers(rank: Rank, channel: Channel) -> None:
        await channel.send(AGENT)
        await channel.send(REGIONS)
        assert await rank.hear(channel) == CancelPull(request_id="a")
        ended_first.append(left.is_set())

    async def cancel(rank: Rank, pulling: asyncio.Future[int]) -> None:
        while not entered.is_set():
            await asyncio.sleep(0.005)
        pulling.cancel()

    _, result = pull(offers, during=cancel)
    assert isinstance(result, asyncio.CancelledError)
    assert ended_first == [True]


def test_nixl_that_cannot_be_loaded_is_a_hand_off_error(monkeypatch: Any) -> None:
    def missing(kv: Any, host: str) -> None:
        raise ConfigError("NIXL cannot be loaded: install the extra")

    monkeypatch.setattr(module, "NixlReader", missing)
    rank, error = pull(shaped(said(AGENT), said(REGIONS)), all_of_it)
    assert type(error) is HandoffError
    assert str(error) == "NIXL cannot be loaded: install the extra"
    assert rank.connections == 1
