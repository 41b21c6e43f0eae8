"""Hears forward passes as Dynamo's planner does, and prints each as a line of JSON.

``python -m tests.support.forward_pass_program ENDPOINT DISCOVERY REQUESTS EVENTS``, after ``ready``.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from dynamo._core import DistributedRuntime
from dynamo.common.forward_pass_metrics import decode
from dynamo.llm import FpmEventSubscriber


async def main(endpoint: str, discovery: str, requests: str, events: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), discovery, requests, event_plane=events)
    subscriber = FpmEventSubscriber(runtime.endpoint(endpoint))
    print("ready", flush=True)
    while (heard := await asyncio.to_thread(subscriber.recv)) is not None:
        passed = decode(heard)
        assert passed is not None, heard
        print(msgspec.json.encode(passed).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
