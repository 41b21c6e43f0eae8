"""A router of Dynamo's own: it hears and recovers what a frontend would, and says what it believes.

``python -m tests.support.observer_router NAMESPACE BLOCK_SIZE``, in the environment of a process of its
graph; a request per line, as JSON, and an answer to each.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TIERS = ("device_blocks", "host_pinned_blocks", "disk_blocks")


class ObserverRouter:
    """The other end, in a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))
        raise AssertionError("the observer has ended")

    def overlap(self, prompt: Sequence[int], **options: Any) -> dict[int, tuple[int, int, int]]:
        """By worker id: blocks of a prompt that it has on device, on the host and on disk, as the router believes."""
        scores = self.ask(overlap=list(prompt), **options)
        return {row["worker_id"]: tuple(row.get(tier, 0) for tier in TIERS) for row in scores["workers"]}

    def blocks(self) -> dict[int, set[int]]:
        """By worker id: hashes of all blocks that the router believes to be on its device."""
        found: dict[int, set[int]] = {}
        for event in self.ask(dump=True):
            stored = event["event"]["data"].get("stored")
            if stored is not None:
                of_worker = found.setdefault(event["worker_id"], set())
                of_worker.update(block["block_hash"] for block in stored["blocks"])
        return found


def environment_of(pid: int) -> dict[str, str]:
    """The environment of a process of a graph, as a router beside it needs it."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
    found.pop("DYN_SYSTEM_PORT", None)
    return found


@contextmanager
def observer(environment: Mapping[str, str], namespace: str, block_size: int) -> Iterator[ObserverRouter]:
    """A router with this environment, which says where discovery and the event plane are."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.observer_router", namespace, str(block_size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**environment},
        cwd=REPOSITORY,
    )
    try:
        yield ObserverRouter(process)
    finally:
        process.kill()
        process.wait()


async def _serve(namespace: str, block_size: int) -> None:
    from dynamo.llm import KvRouter, KvRouterConfig
    from dynamo.runtime import DistributedRuntime

    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "file", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint(f"{namespace}.prefill.generate")
    router = KvRouter(endpoint, block_size, KvRouterConfig())
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        if "overlap" in request:
            tokens = request.pop("overlap")
            answer = await router.get_overlap_scores(tokens, **request)
        else:
            answer = json.loads(await router.dump_events())
        print("ANSWER", json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
