"""What is said of the planner's decisions, and what it is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from wavepp_worker.dynamo.planner_client import PlannerClient
from wavepp_worker.serve.scaling import Decision


class Etcd:
    """Stands in for Dynamo's ``VirtualConnectorClient``."""

    def __init__(self) -> None:
        self.completed: list[int] = []
        self.decide(-1, -1, -1)

    def decide(self, number: int, prefill: int, decode: int) -> None:
        self.now = SimpleNamespace(decision_id=number, num_prefill_workers=prefill, num_decode_workers=decode)

    async def get(self) -> SimpleNamespace:
        return self.now

    async def complete(self, decision: SimpleNamespace) -> None:
        self.completed.append(decision.decision_id)


def test_a_decision_is_told_once_and_its_end_as_well() -> None:
    async def check() -> None:
        etcd = Etcd()
        planner = PlannerClient(etcd)
        assert await planner.look() is None
        etcd.decide(0, 2, -1)
        assert await planner.look() == Decision(0, {"prefill": 2})
        assert await planner.look() is None
        assert etcd.completed == []
        planner.done = Decision(0, {"prefill": 2})
        assert [await planner.look() for _ in range(3)] == [None] * 3
        assert etcd.completed == [0]
        etcd.decide(1, 2, 3)
        assert await planner.look() == Decision(1, {"prefill": 2, "decode": 3})
        assert etcd.completed == [0]

    asyncio.run(check())


def test_a_planner_that_begins_to_count_anew_is_heard_and_told() -> None:
    """As over an etcd that has lost what it had."""

    async def check() -> None:
        etcd = Etcd()
        planner = PlannerClient(etcd)
        for workers in (2, 3, 3):
            etcd.decide(0, workers, 1)
            planner.done = await planner.look()
            assert planner.done == Decision(0, {"prefill": workers, "decode": 1})
            await planner.look()
            etcd.decide(-1, -1, -1)
            assert await planner.look() is None
        assert etcd.completed == [0, 0, 0]

    asyncio.run(check())
