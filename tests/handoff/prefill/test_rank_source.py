"""How long a rank holds blocks, and what it never does with them afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
import torch
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.pull_messages import (
    PIECE_BYTES,
    TO_PULLER,
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
)

from tests.support.handoff_sides import HOST, SECRET, FakeKV, Prefill


class Puller:
    """A receiver that does exactly what the test says."""

    def __init__(self, worker: Prefill, name: str, rank: int = 0) -> None:
        self.worker, self.name, self.rank, self.secret = worker, name, rank, SECRET
        self.payload = b""

    async def start(self, wait: float = 60.0) -> Puller:
        address = self.worker.sources[self.rank].address
        self.channel = await Channel.connect(HOST, address.port, HOST, 2.0)
        await self.channel.send(Pull(request_id=self.name, secret=self.secret, wait=wait))
        return self

    async def next(self) -> Any:
        message = await asyncio.wait_for(self.channel.receive(TO_PULLER), 5)
        if isinstance(message, KvPiece):
            data = bytearray(message.size)
            await self.channel.receive_into(memoryview(data))
            self.payload += data
        return message

    async def rest(self) -> None:
        while not isinstance(await self.next(), AllSent):
            continue

    async def confirm(self, tokens: int, size: int) -> Any:
        await self.channel.send(PullReceived(request_id=self.name, tokens=tokens, size=size))
        return await self.next()


def test_pieces_come_in_order_and_are_bounded(prefill: Any) -> None:
    worker = prefill("socket", width=8192, num_blocks=16)
    kv = worker.kvs[0]
    step = PIECE_BYTES // kv.bytes_per_token
    assert 1 < step < 20

    async def run() -> None:
        worker.offer("a", 40)
        worker.compute("a", 0, 40)
        puller, position = await Puller(worker, "a").start(), 0
        while not isinstance(message := await puller.next(), AllSent):
            assert message.start == position
            assert message.size == kv.bytes_per_token * (message.end - position) <= PIECE_BYTES
            position = message.end
        assert (message.tokens, message.size) == (40, 40 * kv.bytes_per_token)
        assert isinstance(await puller.confirm(40, 40 * kv.bytes_per_token), PullValid)
        puller.channel.close()

    asyncio.run(run())
    assert worker.how("a") == ["received"]


@pytest.mark.parametrize("connected", [True, False])
def test_expires_without_a_receiver_that_asks(
    transport: str, prefill: Any, until: Any, connected: bool
) -> None:
    """S41: a silent receiver even before any token is ready; without any, once all are."""
    worker = prefill(transport, timeout=0.4)

    async def run() -> None:
        worker.offer("a", 40, ready=0 if connected else 40)
        began = time.monotonic()
        puller = await Puller(worker, "a").start() if connected else None
        await until(lambda: worker.how("a") == ["expired"], 3)
        assert 0.3 < time.monotonic() - began < 2
        assert worker.sources[0].pending() == 0
        worker.sources[0].advance("a", 40)
        if puller is not None:
            while isinstance(message := await puller.next(), NixlAgent):
                continue
            assert isinstance(message, PullFailed)
            assert "(expired): nobody asked for it for 0.4 s" in message.message
            puller.channel.close()

    asyncio.run(run())


def test_a_receiver_that_stops_reading_expires_though_the_prefill_goes_on(
    transport: str, prefill: Any, until: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.prefill.pull_server.STOP_SECONDS", 0.3)
    worker = prefill(transport, width=8192, num_blocks=128, timeout=0.6)

    async def run() -> None:
        worker.offer("a", 400, ready=0)
        puller = await Puller(worker, "a").start()
        stop = threading.Event()

        def compute() -> None:
            for end in range(1, 401):
                if stop.wait(0.01):
                    return
                worker.sources[0].advance("a", end)

        computing = threading.Thread(target=compute)
        computing.start()
        began = time.monotonic()
        await until(lambda: worker.how("a"), 6)
        stop.set()
        computing.join()
        assert worker.how("a") == ["expired"]
        assert time.monotonic() - began < 4
        puller.channel.close()

    asyncio.run(run())


def test_a_slow_receiver_costs_bounded_memory(prefill: Any) -> None:
    worker = prefill("socket", width=8192, num_blocks=64)
    kv, copied = worker.kvs[0], []
    kv.before_export = lambda start, end: copied.append(kv.bytes_per_token * (end - start))
    total = 250 * kv.bytes_per_token

    async def run() -> None:
        worker.offer("a", 250)
        worker.sources[0].advance("a", 250)
        puller = await Puller(worker, "a").start()
        await asyncio.sleep(0.5)
        # What the kernel buffers of both ends hold, and one piece.
        assert PIECE_BYTES / 2 < sum(copied) < 24 << 20 < total / 3
        await puller.rest()
        assert sum(copied) == len(puller.payload) == total
        puller.channel.close()

    asyncio.run(run())


def test_a_withdrawal_waits_for_the_copy_that_runs(prefill: Any, until: Any) -> None:
    """S39: the blocks are not given back while a send reads them."""
    worker = prefill("socket")
    entered, leave = threading.Event(), threading.Event()

    def slow(start: int, end: int) -> None:
        entered.set()
        leave.wait(5)

    worker.kvs[0].before_export = slow

    async def run() -> None:
        worker.offer("a", 20)
        worker.compute("a", 0, 20)
        puller = await Puller(worker, "a").start()
        await until(entered.is_set)
        worker.sources[0].withdraw("a")
        await asyncio.sleep(0.15)
        assert worker.how("a") == []
        assert worker.sources[0].pending() == 1
        leave.set()
        await until(lambda: worker.how("a") == ["withdrawn"])
        assert worker.kvs[0].exporting == 0
        assert isinstance(await puller.next(), PullFailed)
        puller.channel.close()

    asyncio.run(run())


def test_a_vanished_receiver_leaves_the_copy_counted(prefill: Any, until: Any) -> None:
    worker = prefill("socket")
    entered, leave = threading.Event(), threading.Event()

    def slow(start: int, end: int) -> None:
        entered.set()
        leave.wait(5)

    worker.kvs[0].before_export = slow

    async def run() -> None:
        worker.offer("a", 20)
        worker.compute("a", 0, 20)
        puller = await Puller(worker, "a").start()
        await until(entered.is_set)
        puller.channel.close()
        await asyncio.sleep(0.05)
        worker.sources[0].withdraw("a")
        await asyncio.sleep(0.1)
        assert worker.how("a") == []
        leave.set()
        await until(lambda: worker.how("a") == ["withdrawn"])

    asyncio.run(run())


def test_nixl_regions_stay_until_the_receiver_stops(prefill: Any, until: Any, monkeypatch: Any) -> None:
    pytest.importorskip("nixl", reason="NIXL is not installed; pip install '.[nixl]'")
    monkeypatch.setattr("wavepp_worker.handoff.prefill.pull_server.STOP_SECONDS", 0.5)
    worker = prefill("nixl")

    async def run() -> None:
        for name, stops in (("stops", True), ("hangs", False)):
            worker.offer(name, 20)
            worker.compute(name, 0, 20)
            puller = await Puller(worker, name).start()
            assert isinstance(await puller.next(), NixlAgent)
            assert isinstance(await puller.next(), KvRegions)
            worker.sources[0].withdraw(name)
            assert isinstance(await puller.next(), PullFailed)
            await asyncio.sleep(0.1)
            assert worker.how(name) == []
            if stops:
                puller.channel.close()
                await until(lambda name=name: worker.how(name) == ["withdrawn"], 0.3)
            else:
                await until(lambda name=name: worker.how(name) == ["withdrawn"], 3)
                with pytest.raises(PeerLost):
                    await puller.next()
                puller.channel.close()

    asyncio.run(run())


def test_nixl_a_read_that_ended_too_late_is_not_confirmed(prefill: Any, until: Any) -> None:
    """Blocks may have been overwritten since, and only the source knows."""
    pytest.importorskip("nixl", reason="NIXL is not installed; pip install '.[nixl]'")
    worker = prefill("nixl")

    async def run() -> None:
        worker.offer("a", 20)
        worker.compute("a", 0, 20)
        puller = await Puller(worker, "a").start()
        while not isinstance(message := await puller.next(), KvRegions):
            continue
        worker.sources[0].withdraw("a")
        await puller.channel.send(RegionsRead(request_id="a", end=message.end))
        answers = [await puller.confirm(20, 20 * worker.kvs[0].bytes_per_token)]
        with contextlib.suppress(PeerLost):
            while True:
                answers.append(await puller.next())
        assert {type(answer) for answer in answers} == {PullFailed}
        await until(lambda: worker.how("a") == ["withdrawn"])
        puller.channel.close()

    asyncio.run(run())


def test_a_receiver_that_lost_its_connection_may_start_again(prefill: Any, until: Any) -> None:
    worker = prefill("socket", width=4096)

    async def run() -> None:
        worker.offer("a", 60)
        worker.compute("a", 0, 30)
        first = await Puller(worker, "a").start()
        await first.next()
        first.channel.close()
        second = await Puller(worker, "a").start()
        assert (await second.next()).start == 0
        # The first connection is half open here: the newer one takes over.
        third = await Puller(worker, "a").start()
        assert (await third.next()).start == 0
        with pytest.raises(PeerLost):
            await second.rest()
        worker.compute("a", 30, 60)
        await third.rest()
        expected = worker.kvs[0].bytes_per_token * 60
        assert len(third.payload) == expected
        assert isinstance(await third.confirm(60, expected), PullValid)
        await until(lambda: worker.how("a") == ["received"])
        second.channel.close()
        third.channel.close()

    asyncio.run(run())


def test_a_wrong_confirmation_fails(prefill: Any, until: Any) -> None:
    worker = prefill("socket")
    size = 20 * worker.kvs[0].bytes_per_token

    async def run() -> None:
        for name, tokens, confirmed in (("a", 19, size), ("b", 20, size - 1)):
            worker.offer(name, 20)
            worker.compute(name, 0, 20)
            puller = await Puller(worker, name).start()
            await puller.rest()
            answer = await puller.confirm(tokens, confirmed)
            assert isinstance(answer, PullFailed)
            assert "it confirms" in answer.message
            await until(lambda name=name: worker.how(name) == ["failed"])
            puller.channel.close()

    asyncio.run(run())


def test_a_confirmation_before_the_end_fails(prefill: Any, until: Any) -> None:
    worker = prefill("socket")

    async def run() -> None:
        worker.offer("a", 20)
        worker.compute("a", 0, 10)
        puller = await Puller(worker, "a").start()
        await puller.next()
        answer = await puller.confirm(20, 20 * worker.kvs[0].bytes_per_token)
        assert isinstance(answer, PullFailed)
        await until(lambda: worker.how("a") == ["failed"])
        puller.channel.close()

    asyncio.run(run())


def test_kv_that_cannot_be_read_fails_that_request_only(prefill: Any, until: Any) -> None:
    """S40: the error path leaves clean books."""
    worker = prefill("socket")

    def broken(start: int, end: int) -> None:
        raise RuntimeError("the device is gone")

    async def run() -> None:
        worker.offer("a", 20)
        worker.compute("a", 0, 20)
        worker.kvs[0].before_export = broken
        puller = await Puller(worker, "a").start()
        message = await puller.next()
        assert isinstance(message, PullFailed)
        assert "the device is gone" in message.message
        await until(lambda: worker.how("a") == ["failed"])
        puller.channel.close()
        worker.kvs[0].before_export = lambda start, end: None
        worker.offer("b", 20)
        worker.compute("b", 0, 20)
        puller = await Puller(worker, "b").start()
        await puller.rest()
        await puller.channel.send(CancelPull(request_id="b"))
        await until(lambda: worker.how("b") == ["withdrawn"])
        puller.channel.close()

    asyncio.run(run())
    worker.sources[0].check()


def test_late_and_early_pulls_are_told_why(prefill: Any) -> None:
    worker = prefill("socket")

    async def run() -> None:
        worker.offer("a", 20)
        worker.sources[0].withdraw("a")
        puller = await Puller(worker, "a").start()
        message = await puller.next()
        assert message.message == "rank 0 has no KV of request a: it was withdrawn already"
        puller.channel.close()
        worker.sources[0].expect("never", SECRET)
        puller = await Puller(worker, "never").start(wait=0.2)
        message = await puller.next()
        assert "never: it was not offered within 0.2 s" in message.message
        puller.channel.close()
        worker.offer("a", 20, ready=20)
        puller = await Puller(worker, "a").start()
        assert isinstance(await puller.next(), KvPiece)
        puller.channel.close()

    asyncio.run(run())


def test_impossible_calls_are_refused(prefill: Any) -> None:
    worker = prefill("socket")
    source = worker.sources[0]
    with pytest.raises(HandoffError, match="offers 0 of 20 tokens in 4 blocks of 4, which cannot be"):
        source.offer("a", torch.arange(4), 20, 0)
    with pytest.raises(HandoffError, match="offers 9 of 8 tokens"):
        source.offer("a", torch.arange(4), 8, 9)
    with pytest.raises(HandoffError, match="request a is offered, but nobody was told its secret"):
        source.offer("a", torch.arange(5), 20, 0)
    source.expect("a", SECRET)
    source.offer("a", torch.arange(5), 20, 0)
    with pytest.raises(HandoffError, match="request a is already offered"):
        source.offer("a", torch.arange(5), 20, 0)
    with pytest.raises(HandoffError, match="request a has 20 tokens but advances to 21"):
        source.advance("a", 21)
    source.advance("unknown", 5)
    source.withdraw("unknown")
    assert source.pending() == 1


def test_the_table_is_the_one_of_the_offer(prefill: Any) -> None:
    """The caller may reuse its tensor."""
    worker = prefill("socket")
    kv: FakeKV = worker.kvs[0]

    async def run() -> None:
        table = torch.tensor([3, 1, 2])
        kv.write(table, 0, 12, 1)
        expected = kv.export_tokens(table.clone(), 0, 12).numpy().tobytes()
        worker.sources[0].expect("a", SECRET)
        worker.sources[0].offer("a", table, 12, 12)
        table.zero_()
        puller = await Puller(worker, "a").start()
        await puller.next()
        assert puller.payload == expected
        puller.channel.close()

    asyncio.run(run())


def test_close_settles_everything_in_bounded_time(transport: str, prefill: Any) -> None:
    worker = prefill(transport)

    async def run() -> None:
        pullers = []
        for index in range(4):
            worker.offer(f"r{index}", 20, ready=8)
            if index % 2:
                pullers.append(await Puller(worker, f"r{index}").start())
        await asyncio.sleep(0.1)
        for puller in pullers:
            puller.channel.close()
        await asyncio.get_running_loop().run_in_executor(None, worker.sources[0].close)

    began = time.monotonic()
    asyncio.run(run())
    worker.sources[0].close()
    assert time.monotonic() - began < 4
    assert sorted(worker.settled) == [(0, f"r{index}", "withdrawn") for index in range(4)]


def test_an_owner_that_raises_does_not_stop_the_source(until: Any) -> None:
    from wavepp_worker.handoff.prefill.socket_source import SocketSource

    settled = []

    def broken(name: str, how: str) -> None:
        settled.append(name)
        raise RuntimeError("boom")

    source = SocketSource(0, HOST, FakeKV(range(1), 8, 4), torch.float32, 5.0, broken)
    for name in ("a", "b"):
        source.expect(name, SECRET)
        source.offer(name, torch.arange(2), 8, 0)
        source.withdraw(name)
    asyncio.run(until(lambda: settled == ["a", "b"]))
    assert source.pending() == 0
    source.close()
