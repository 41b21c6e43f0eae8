"""Stands in for Dynamo's planner: its own coordinator, told by lines what to decide.

``python -m tests.support.planner_program NAMESPACE`` prints ``ready``, then for each line ``PREFILL DECODE`` of its
input (``-`` for no number) the state that the coordinator has, once it has taken the decision; and ``done`` when the
decision is carried out.
"""

from __future__ import annotations

import asyncio
import sys

from dynamo._core import DistributedRuntime, VirtualConnectorCoordinator

CHECK_SECONDS, MOST_SECONDS = 1, 120


async def decide(coordinator: VirtualConnectorCoordinator, prefill: int | None, decode: int | None) -> None:
    wanted = {"num_prefill_workers": prefill, "num_decode_workers": decode}
    while True:
        await coordinator.update_scaling_decision(prefill, decode)
        state = coordinator.read_state()
        if all(count is None or getattr(state, name) == count for name, count in wanted.items()):
            break
        # It takes none while the one before is not carried out.
        await asyncio.sleep(0.2)
    print("decided", state.decision_id, state.num_prefill_workers, state.num_decode_workers, flush=True)
    while not await coordinator.is_scaling_ready():
        await asyncio.sleep(0.1)
    print("done", state.decision_id, flush=True)


async def main(namespace: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    coordinator = VirtualConnectorCoordinator(
        runtime, namespace, CHECK_SECONDS, MOST_SECONDS, MOST_SECONDS // CHECK_SECONDS
    )
    await coordinator.async_init()
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        numbers = [None if word == "-" else int(word) for word in line.split()]
        await decide(coordinator, *numbers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
