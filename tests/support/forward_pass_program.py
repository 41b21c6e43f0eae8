"""Hears forward passes as Dynamo's planner does, and prints each as a line of JSON.

``python -m tests.support.forward_pass_program ENDPOINT DISCOVERY REQUESTS EVENTS``, after ``ready``. With a component
in the place of the endpoint, it asks each of its workers once what passes cost, of which the planner asks one.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from dynamo._core import DistributedRuntime
from dynamo.common.forward_pass_metrics import ForwardPassMetrics, decode
from dynamo.llm import FpmEventSubscriber


async def ask(runtime: DistributedRuntime, component: str) -> None:
    client = await runtime.endpoint(f"{component}.get_perf_metrics").client()
    for instance in await client.wait_for_instances():
        async for answer in await client.direct(None, instance):
            # Who has had no request yet has no results.
            for result in answer.data().get("results", ()):
                for each in msgspec.convert(result["fpms"], list[ForwardPassMetrics]):
                    print(msgspec.json.encode(each).decode(), flush=True)


async def main(endpoint: str, discovery: str, requests: str, events: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), discovery, requests, event_plane=events)
    if endpoint.count(".") == 1:
        print("ready", flush=True)
        await ask(runtime, endpoint)
        return
    subscriber = FpmEventSubscriber(runtime.endpoint(endpoint))
    print("ready", flush=True)
    while (heard := await asyncio.to_thread(subscriber.recv)) is not None:
        passed = decode(heard)
        assert passed is not None, heard
        print(msgspec.json.encode(passed).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
