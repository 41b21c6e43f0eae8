"""Whatever order things happen in, everything settles once and no one reads or keeps what it should not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.decode.received import Received

from tests.support.handoff_sides import FIRST, SECRET, Decode, Prefill

TOKENS = 23
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "compute", "withdraw", "finish", "fail", "receive", "cancel", "pause"]),
        st.integers(0, 2),
        st.integers(0, 8),
    ),
    min_size=4,
    max_size=25,
)


class Story:
    """Three requests of one example. Blocks are poisoned the moment a rank says it does not need them."""

    def __init__(self, worker: Prefill, target: Decode, number: int) -> None:
        self.worker, self.target = worker, target
        self.names = [f"{number}.{index}" for index in range(3)]
        self.rooms = {name: number * 3 + index for index, name in enumerate(self.names)}
        self.computed: dict[str, int] = {}
        self.over: set[str] = set()
        self.receiving: dict[str, asyncio.Future[Received]] = {}

    async def step(self, what: str, index: int, amount: int) -> None:
        name = self.names[index]
        room, live = self.rooms[name], name in self.computed and name not in self.over
        if what == "offer" and name not in self.computed:
            self.computed[name] = amount
            self.worker.tables[name] = []
            offer = self.worker.describe(name, TOKENS)
            for kv, source in zip(self.worker.kvs, self.worker.sources, strict=True):
                count = -(-TOKENS // kv.block_size)
                table = torch.arange(index * count, (index + 1) * count)
                self.worker.tables[name].append(table)
                kv.write(table, 0, amount, index)
                source.expect(name, SECRET)
                source.offer(name, table, TOKENS, amount)
            self.worker.server.register(room, offer)
        elif what == "compute" and live and name not in self.worker.cancelled:
            end = min(TOKENS, self.computed[name] + amount)
            if not self.worker.how(name):
                self.worker.compute(name, self.computed[name], end, index)
            self.computed[name] = end
        elif what == "withdraw" and live:
            for source in self.worker.sources:
                source.withdraw(name)
        elif what == "finish" and live and self.computed[name] == TOKENS:
            self.over.add(name)
            self.worker.server.finish(room, FIRST)
        elif what == "fail" and name not in self.over:
            self.over.add(name)
            self.worker.server.fail(room, "failed on purpose")
            if name in self.computed:
                for source in self.worker.sources:
                    source.withdraw(name)
            self.computed.setdefault(name, 0)
        elif what == "receive" and name not in self.receiving:
            self.receiving[name] = asyncio.ensure_future(self.target.receive(self.worker, room))
        elif what == "cancel" and name in self.receiving:
            self.receiving[name].cancel()
        elif what == "pause":
            await asyncio.sleep(amount / 1000)

    def arrived(self, task: asyncio.Future[Received]) -> bool:
        return not task.cancelled() and task.exception() is None

    async def end(self, until: Any) -> None:
        for index, name in enumerate(self.names):
            if name not in self.receiving:
                await self.step("receive", index, 0)
            if name not in self.computed:
                await self.step("fail", index, 0)
            await self.step("compute", index, TOKENS)
            await self.step("finish", index, 0)
            await self.step("fail", index, 0)
        results = await asyncio.gather(*self.receiving.values(), return_exceptions=True)
        for name, result in zip(self.receiving, results, strict=True):
            index = self.names.index(name)
            if isinstance(result, Received):
                table = self.target.tables[name]
                assert result.bytes_received == TOKENS * self.target.kv.bytes_per_token
                assert self.target.kv.wrong(table, 0, TOKENS, index) == 0
            else:
                assert isinstance(result, (HandoffError, asyncio.CancelledError)), result
        await until(lambda: sum(source.pending() for source in self.worker.sources) == 0)
        await until(lambda: self.worker.server.pending() == 0)
        ranks = len(self.worker.sources)
        for name in self.names:
            offered = name in self.worker.tables
            # A source counts a request as settled a moment before it says so.
            await until(lambda name=name, offered=offered: len(self.worker.how(name)) >= ranks * offered)
            assert len(self.worker.how(name)) == ranks * offered, self.worker.how(name)
            assert self.worker.cancelled.count(name) <= 1
        for source in self.worker.sources:
            source.check()


@pytest.mark.parametrize("transport_examples", [("socket", 20), ("nixl", 10)], ids=["socket", "nixl"])
def test_random_interleavings(
    prefill: Any, decode: Any, until: Any, transport_examples: tuple[str, int]
) -> None:
    transport, examples = transport_examples
    if transport == "nixl":
        pytest.importorskip("nixl", reason="NIXL is not installed; pip install '.[nixl]'")
    worker = prefill(transport, parts=((0, 2), (2, 5)), blocks=(4, 3), keep=0.4)
    target = decode(num_blocks=4096)
    numbers, arrived = iter(range(10_000)), []

    def poison(rank: int, name: str) -> None:
        for pool in worker.kvs[rank].pools:
            pool[worker.tables[name][rank]] = float("nan")

    for rank, source in enumerate(worker.sources):
        settle = source._on_settled

        def settled(name: str, how: Any, rank: int = rank, settle: Any = settle) -> None:
            poison(rank, name)
            settle(name, how)

        source._on_settled = settled

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(STEPS)
    def stories(steps: list[tuple[str, int, int]]) -> None:
        async def run() -> None:
            story = Story(worker, target, next(numbers))
            target.used %= 4000
            for what, index, amount in steps:
                await story.step(what, index, amount)
            await story.end(until)
            arrived.extend(name for name, task in story.receiving.items() if story.arrived(task))

        asyncio.run(asyncio.wait_for(run(), 60))

    stories()
    assert arrived
