"""Hears forward passes as Dynamo's planner does, and prints each as a line of JSON.

``python -m tests.support.forward_pass_program ENDPOINT DISCOVERY REQUESTS EVENTS``, after ``ready``. With a component
in the place of the endpoint, it asks its workers once what passes cost, as the planner does before it begins.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from dynamo._core import DistributedRuntime
from dynamo.common.forward_pass_metrics import decode
from dynamo.llm import FpmEventSubscriber
from dynamo.planner.config.defaults import SubComponentType
from dynamo.planner.monitoring.perf_metrics import fetch_pre_deployment_metrics
from dynamo.planner.monitoring.worker_info import WorkerInfo


async def ask(runtime: DistributedRuntime, namespace: str, component: str) -> None:
    role = SubComponentType.PREFILL if component == "prefill" else SubComponentType.DECODE
    found = await fetch_pre_deployment_metrics(
        runtime, namespace, WorkerInfo(component_name=component), None, role
    )
    for each in found:
        print(msgspec.json.encode(each).decode(), flush=True)


async def main(endpoint: str, discovery: str, requests: str, events: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), discovery, requests, event_plane=events)
    namespace, component, *name = endpoint.split(".")
    if not name:
        print("ready", flush=True)
        await ask(runtime, namespace, component)
        return
    subscriber = FpmEventSubscriber(runtime.endpoint(endpoint))
    print("ready", flush=True)
    while (heard := await asyncio.to_thread(subscriber.recv)) is not None:
        passed = decode(heard)
        assert passed is not None, heard
        print(msgspec.json.encode(passed).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
