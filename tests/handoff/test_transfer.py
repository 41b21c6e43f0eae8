"""A hand-off from end to end over both transports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from wavepp_worker.errors import HandoffError, RequestTimeout
from wavepp_worker.handoff.connection import listener
from wavepp_worker.handoff.decode.introductions import MOST_UNSAID
from wavepp_worker.handoff.decode.receiver import KVReceiver
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.handoff.transport import make_source
from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache
from wavepp_worker.model.kv.paged_kv import TorchPagedKV

from tests.support.handoff_sides import FIRST, HOST, MODEL, SECRET, room_of
from tests.support.kept_tensors import kept

UNEVEN = {"parts": ((0, 1), (1, 4), (4, 5)), "blocks": (4, 7, 2)}


@pytest.mark.parametrize("tokens", [1, 6, 41])
def test_uneven_layers_and_blocks_arrive_whole(
    transport: str, prefill: Any, decode: Any, until: Any, tokens: int
) -> None:
    """5 layers over 3 ranks (S42), blocks of 4, 7 and 2 tokens into blocks of 3."""
    worker, target = prefill(transport, **UNEVEN), decode()

    async def run() -> None:
        worker.server.register(9, worker.offer("a", tokens))
        worker.compute("a", 0, tokens)
        worker.server.finish(9, FIRST)
        got = await target.receive(worker, 9)
        assert got.first == FIRST
        assert got.offer.request_id == "a"
        assert got.bytes_received == tokens * target.kv.bytes_per_token
        assert got.bytes_received == tokens * sum(kv.bytes_per_token for kv in worker.kvs)
        assert target.kv.wrong(target.tables["a"], 0, tokens, 1) == 0
        await until(lambda: worker.how("a") == ["received"] * 3)
        await until(lambda: worker.server.pending() == 0)

    asyncio.run(run())
    assert worker.cancelled == []
    assert all(source.pending() == 0 for source in worker.sources)


def test_tokens_arrive_while_later_ones_are_computed(
    transport: str, prefill: Any, decode: Any, until: Any
) -> None:
    worker, target = prefill(transport, **UNEVEN), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 30, ready=5))
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        done = 5
        for end in (6, 13, 29, 30):
            await until(lambda done=done: target.holds("a", done))
            assert not receiving.done()
            worker.compute("a", done, end)
            done = end
        await until(lambda: worker.how("a") == ["received"] * 3)
        assert not receiving.done()
        worker.server.finish(1, FIRST)
        assert (await receiving).bytes_received == 30 * target.kv.bytes_per_token

    asyncio.run(run())


class LateGpu:
    """In place of a ``SideStream``: what is queued is computed when the test says so."""

    def __init__(self) -> None:
        self.queued: list[threading.Event] = []

    def now(self) -> threading.Event:
        self.queued.append(threading.Event())
        return self.queued[-1]

    async def reached(self, until: threading.Event | None) -> None:
        assert until is not None
        while not until.is_set():
            await asyncio.sleep(0.001)

    @contextmanager
    def copies(self, after: None) -> Iterator[None]:
        yield


def test_nothing_is_read_before_a_gpu_has_computed_it_and_nothing_waits_for_later_waves(
    transport: str, prefill: Any, decode: Any, until: Any
) -> None:
    """Tokens are ready when their wave is queued; another, of another request, is queued behind it."""
    worker, target = prefill(transport), decode()
    gpu, source, kv = LateGpu(), worker.sources[0], worker.kvs[0]
    source._side = gpu

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 9, ready=4))
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        for at, end in enumerate((4, 8, 9)):
            if at:
                source.advance("a", end)
            gpu.now()
            await asyncio.sleep(0.05)
            start = (0, 4, 8)[at]
            assert not target.holds("a", end), "it is not there yet"
            kv.write(worker.tables["a"][0], start, end, 1)
            gpu.queued[-2].set()
            await until(lambda end=end: target.holds("a", end))
        worker.server.finish(1, FIRST)
        await receiving

    asyncio.run(run())


STATE = LayerCache(
    "test", "recurrent", (CachedTensor("state", (2, 3), "float32"), CachedTensor("conv", (5,)))
)
LAYERS = [STATE, STATE, kept((1, 4), (2, 3)), STATE, kept((2, 2), (1, 6))]


def test_the_state_of_recurrent_layers_follows_the_kv(transport: str, until: Any) -> None:
    """Of three ranks one has recurrent layers alone, one attention alone, one both."""

    def memory(layers: range, blocks: int, block: int) -> TorchPagedKV:
        caches = [LAYERS[layer] for layer in layers]
        return TorchPagedKV(layers, caches, blocks, block, torch.float32, torch.device("cpu"), 6)

    settled: list[str] = []
    ranks = [memory(range(0, 2), 4, 4), memory(range(2, 3), 4, 4), memory(range(3, 5), 8, 2)]
    target = memory(range(5), 8, 3)
    sources = [
        make_source(
            transport,
            rank=rank,
            host=HOST,
            kv=kv,
            dtype=torch.float32,
            timeout=10.0,
            on_settled=lambda name, how: settled.append(how),
        )
        for rank, kv in enumerate(ranks)
    ]
    receiver = KVReceiver(target, 5, torch.float32, MODEL, HOST)
    server = BootstrapServer(HOST, 0, on_cancel=lambda _: None)
    generator = torch.Generator().manual_seed(5)
    tables = [torch.tensor([], dtype=torch.int64), torch.tensor([2, 0, 3]), torch.tensor([5, 1, 7, 0, 2])]

    async def run() -> int:
        for source, table in zip(sources, tables, strict=True):
            source.expect("a", SECRET)
            source.offer("a", table, 9, 4, state=4)
        offer = Offer(
            request_id="a",
            secret=SECRET,
            prompt_tokens=9,
            model_id=MODEL,
            ranks=tuple(source.address for source in sources),
        )
        server.register(1, offer)

        async def allocate(offer: Offer) -> torch.Tensor:
            return torch.tensor([6, 1, 3])

        receiving = asyncio.ensure_future(receiver.receive(room_of(server, 1), allocate, 10.0, lambda: 2))
        for kv, table in zip(ranks, tables, strict=True):
            if len(table):
                rows = torch.randn(kv.bytes_per_token * 9 // 4, generator=generator)
                kv.import_tokens(table, 0, 9, kv.layers, rows.view(torch.uint8))
            if kv.states is not None:
                state = torch.randint(0, 255, (1, kv.states.block_bytes), generator=generator)
                kv.states.import_blocks(torch.tensor([4]), state.to(torch.uint8))
        for source in sources:
            source.advance("a", 9)
        server.finish(1, FIRST)
        return (await receiving).bytes_received

    try:
        received = asyncio.run(run())
        asyncio.run(until(lambda: settled == ["received"] * 3))
    finally:
        for source in sources:
            source.close()
        server.close()
        receiver.close()
    assert target.states is not None
    assert received == 9 * target.bytes_per_token + target.states.block_bytes
    states = [kv.states.export_blocks(torch.tensor([4]))[0] for kv in ranks if kv.states is not None]
    assert torch.equal(target.states.export_blocks(torch.tensor([2]))[0], torch.cat(states))
    assert not target.states.export_blocks(torch.tensor([0, 1, 3, 4, 5])).any(), "nobody else's"
    payload = torch.cat([kv.export_tokens(table, 0, 9) for kv, table in zip(ranks, tables, strict=True)])
    assert torch.equal(target.export_tokens(torch.tensor([6, 1, 3]), 0, 9), payload)


def test_nothing_but_the_request_is_written(transport: str, prefill: Any, decode: Any) -> None:
    worker, target = prefill(transport), decode()

    async def run() -> None:
        await target.allocate(worker.describe("before", 9))
        worker.server.register(1, worker.offer("a", 10))
        worker.compute("a", 0, 10)
        worker.server.finish(1, FIRST)
        await target.receive(worker, 1)

    asyncio.run(run())
    rows = set(target.kv.rows(target.tables["a"], 0, 10))
    untouched = [
        bool((pool[block, row] == -1).all())
        for pool in target.kv.pools
        for block in range(target.kv.num_blocks)
        for row in range(target.kv.block_size)
        if (block, row) not in rows
    ]
    assert all(untouched)


def test_many_at_once(transport: str, prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill(transport, **UNEVEN), decode()
    names = {f"r{index}": 3 + 5 * index for index in range(6)}

    async def run() -> None:
        receiving = [asyncio.ensure_future(target.receive(worker, room)) for room in range(6)]
        for room, (name, tokens) in enumerate(names.items()):
            # Ranks share blocks between requests here, so each is computed and received before the next.
            worker.server.register(room, worker.offer(name, tokens, seed=room))
            worker.compute(name, 0, tokens, seed=room)
            worker.server.finish(room, FIRST)
            await receiving[room]
        for room, (name, tokens) in enumerate(names.items()):
            assert target.kv.wrong(target.tables[name], 0, tokens, room) == 0
        await until(lambda: sum(source.pending() for source in worker.sources) == 0)

    asyncio.run(run())


def test_pull_may_come_before_the_offer(transport: str, prefill: Any, decode: Any) -> None:
    worker, target = prefill(transport), decode()

    async def run() -> None:
        worker.server.register(1, worker.describe("a", 8))
        worker.sources[0].expect("a", SECRET)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await asyncio.sleep(0.1)
        worker.offer("a", 8)
        worker.compute("a", 0, 8)
        worker.server.finish(1, FIRST)
        await receiving

    asyncio.run(run())
    assert target.kv.wrong(target.tables["a"], 0, 8, 1) == 0


@pytest.mark.parametrize("ready", [0, 17])
def test_a_request_that_waits_for_its_waves_is_not_timed_out_under_its_receiver(
    transport: str, prefill: Any, decode: Any, ready: int
) -> None:
    """Nor is one that waits without a receiver; time counts when KV is ready and nobody asks for it."""
    worker, target = prefill(transport, **UNEVEN, timeout=1.0), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 40, ready=ready))
        worker.offer("b", 40, ready=ready, seed=2)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await asyncio.sleep(1.8)
        assert not receiving.done()
        assert worker.how("b") == []
        worker.compute("a", ready, 40)
        await asyncio.sleep(1.3)
        worker.server.finish(1, FIRST)
        await receiving

    asyncio.run(run())
    assert target.holds("a", 40)


def test_who_waits_for_blocks_of_its_own_is_not_timed_out(transport: str, prefill: Any, decode: Any) -> None:
    """The KV is ready; the decode worker is full, but has asked."""
    worker, target = prefill(transport, **UNEVEN, timeout=1.5), decode()

    async def late(offer: Any) -> torch.Tensor:
        await asyncio.sleep(3.2)
        return await target.allocate(offer)

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 40, ready=40))
        worker.server.finish(1, FIRST)
        await target.receive(worker, 1, allocate=late)

    asyncio.run(run())
    assert target.holds("a", 40)


def test_who_waits_holds_up_no_other(transport: str, prefill: Any, decode: Any, until: Any) -> None:
    """S43: one request whose waves do not come, one whose receiver has no blocks, and one that lacks nothing."""
    worker, target = prefill(transport, **UNEVEN), decode()

    async def run() -> None:
        free = asyncio.Event()

        async def late(offer: Any) -> torch.Tensor:
            await free.wait()
            return await target.allocate(offer)

        worker.server.register(1, worker.offer("no waves", 20, seed=2))
        worker.server.register(2, worker.offer("no blocks", 20, ready=20, seed=3))
        worker.server.finish(2, FIRST)
        waiting = [
            asyncio.ensure_future(target.receive(worker, 1)),
            asyncio.ensure_future(target.receive(worker, 2, allocate=late)),
        ]
        await until(lambda: "no waves" in target.tables)
        # Ranks share blocks between requests here, so the others get theirs afterwards.
        worker.server.register(3, worker.offer("a", 20))
        worker.compute("a", 0, 20)
        worker.server.finish(3, FIRST)
        await asyncio.wait_for(target.receive(worker, 3), 10)
        assert target.holds("a", 20)
        assert not any(each.done() for each in waiting)
        free.set()
        worker.compute("no waves", 0, 20, seed=2)
        worker.server.finish(1, FIRST)
        await asyncio.gather(*waiting)

    asyncio.run(run())


@pytest.mark.parametrize("when", ["unregistered", "allocating", "nothing ready", "half ready", "all ready"])
def test_cancel_frees_the_prefill_side_at_once(
    transport: str, prefill: Any, decode: Any, until: Any, when: str
) -> None:
    worker, target = prefill(transport, **UNEVEN), decode()

    async def never(offer: Any) -> torch.Tensor:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        values = {"allocate": never} if when == "allocating" else {}
        receiving = asyncio.ensure_future(target.receive(worker, 1, **values))
        await asyncio.sleep(0.1)
        if when != "unregistered":
            worker.server.register(1, worker.offer("a", 40))
            half = {"half ready": 17, "all ready": 40}.get(when)
            if half:
                worker.compute("a", 0, half)
                await until(lambda: target.holds("a", half))
            await asyncio.sleep(0.1)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        if when == "unregistered":
            worker.server.register(1, worker.offer("a", 40))
        await until(lambda: worker.cancelled == ["a"], 2)
        await until(lambda: len(worker.how("a")) == 3, 2)
        allowed = {"withdrawn", "received"} if when == "all ready" else {"withdrawn"}
        assert set(worker.how("a")) <= allowed
        # Whatever the engine says afterwards is not news any more.
        worker.server.fail(1, "aborted")
        await until(lambda: worker.server.pending() == 0)

    asyncio.run(run())


def test_cancel_after_the_end_changes_nothing(transport: str, prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill(transport), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 8))
        worker.compute("a", 0, 8)
        worker.server.finish(1, FIRST)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await receiving
        assert not receiving.cancel()
        await until(lambda: worker.how("a") == ["received"])
        worker.sources[0].withdraw("a")
        worker.sources[0].advance("a", 8)
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert worker.settled == [(0, "a", "received")]
    assert worker.cancelled == []


def test_nothing_is_written_after_cancel_returns(
    transport: str, prefill: Any, decode: Any, until: Any
) -> None:
    """The caller gives the blocks to someone else as soon as ``receive`` is gone."""
    worker, target = prefill(transport, parts=((0, 5),), blocks=(4,)), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 60))
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await until(lambda: "a" in target.tables)
        for start in range(0, 60, 4):
            worker.compute("a", start, start + 4)
            await asyncio.sleep(0.002)
            if start == 24:
                receiving.cancel()
            if receiving.done():
                break
        with pytest.raises(asyncio.CancelledError):
            await receiving
        before = [pool.clone() for pool in target.kv.pools]
        worker.compute("a", 40, 60)
        await asyncio.sleep(0.2)
        assert all(torch.equal(old, new) for old, new in zip(before, target.kv.pools, strict=True))

    asyncio.run(run())


def test_cancel_waits_for_the_import_that_runs(prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill("socket"), decode()
    entered, leave = threading.Event(), threading.Event()

    def slow(start: int, end: int) -> None:
        entered.set()
        leave.wait(5)

    target.kv.before_import = slow

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 8))
        worker.compute("a", 0, 8)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await until(entered.is_set)
        receiving.cancel()
        await asyncio.sleep(0.1)
        receiving.cancel()
        await asyncio.sleep(0.1)
        assert not receiving.done()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert target.kv.wrong(target.tables["a"], 0, 8, 1) == 0
        await until(lambda: worker.how("a") == ["withdrawn"])

    asyncio.run(run())


def test_a_failed_prefill_reaches_decode_as_its_own_sentence(
    transport: str, prefill: Any, decode: Any, until: Any
) -> None:
    worker, target = prefill(transport, **UNEVEN), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        worker.compute("a", 0, 9)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await until(lambda: "a" in target.tables)
        await asyncio.sleep(0.1)
        for source in worker.sources:
            source.withdraw("a")
        await asyncio.sleep(0.05)
        worker.server.fail(1, "rank 1 ran out of luck; try again")
        with pytest.raises(HandoffError, match=r"^rank 1 ran out of luck; try again$"):
            await receiving
        await until(lambda: worker.how("a") == ["withdrawn"] * 3)

    asyncio.run(run())


def test_withdrawn_without_a_reason_is_a_failure(
    transport: str, prefill: Any, decode: Any, until: Any
) -> None:
    worker, target = prefill(transport), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await until(lambda: "a" in target.tables)
        worker.sources[0].withdraw("a")
        with pytest.raises(HandoffError, match=r"rank 0 .*request a.*withdrawn"):
            await receiving
        await until(lambda: worker.cancelled == ["a"])

    asyncio.run(run())


def test_time_limit_of_the_receiver(transport: str, prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill(transport), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        with pytest.raises(RequestTimeout, match=r"room 1 .*not here within 0\.3 s"):
            await target.receive(worker, 1, timeout=0.3)
        await until(lambda: worker.cancelled == ["a"])
        await until(lambda: worker.how("a") == ["withdrawn"])

    asyncio.run(run())


def test_closing_sources_ends_receivers(transport: str, prefill: Any, decode: Any, until: Any) -> None:
    worker, target = prefill(transport, **UNEVEN), decode()

    async def run() -> None:
        worker.server.register(1, worker.offer("a", 20))
        worker.compute("a", 0, 9)
        receiving = asyncio.ensure_future(target.receive(worker, 1))
        await until(lambda: "a" in target.tables)
        await asyncio.sleep(0.1)
        closing = asyncio.get_running_loop().run_in_executor(None, worker.sources[1].close)
        with pytest.raises(HandoffError, match="rank 1"):
            await receiving
        await asyncio.wait_for(closing, 8)
        assert (1, "a", "withdrawn") in worker.settled
        with pytest.raises(HandoffError, match="closed"):
            worker.sources[1].offer("b", torch.arange(3), 4, 0)

    asyncio.run(run())


def test_rank_gone_is_a_sentence(transport: str, prefill: Any, decode: Any) -> None:
    worker, target = prefill(transport), decode()
    worker.sources[0].close()

    async def run() -> None:
        worker.server.register(1, worker.describe("a", 20))
        with pytest.raises(HandoffError, match=r"request a: rank 0 at 127.0.0.1:\d+ was lost 3 times"):
            await target.receive(worker, 1)

    asyncio.run(run())


def test_hundreds_of_requests_at_once_do_not_push_each_other_out(
    prefill: Any, decode: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """To the listeners of the prefill side each is a stranger until it has said what it wants."""
    monkeypatch.setattr(listener, "MAX_STRANGERS", MOST_UNSAID)
    worker = prefill("socket", parts=((0, 2), (2, 5)), blocks=(4, 4), num_blocks=8)
    target, many = decode(num_blocks=600), 300

    async def run() -> None:
        for room in range(many):
            worker.server.register(room, worker.offer(f"{room}", 5, ready=5))
            worker.server.finish(room, FIRST)
        receiving = [
            asyncio.ensure_future(target.receive(worker, room, timeout=60.0)) for room in range(many)
        ]
        # As long as nobody runs here, whoever has connected has said nothing.
        await asyncio.sleep(0)
        time.sleep(0.2)
        for got in await asyncio.gather(*receiving):
            assert got.first == FIRST

    asyncio.run(run())
    assert "made room" not in caplog.text
