"""Dynamo workers on fake engines: making one, asking it, and reading its chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from dynamo._core import Context
from wavepp_worker.dynamo.agg import AggWorker
from wavepp_worker.dynamo.bootstrap_info import advertised_host
from wavepp_worker.dynamo.decode import DecodeWorker
from wavepp_worker.dynamo.prefill import PrefillWorker
from wavepp_worker.dynamo.worker import WaveppWorker
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.model.sampled_token import SampledToken

from tests.support import fake_engines as fakes

KINDS = {"prefill": PrefillWorker, "decode": DecodeWorker, "agg": AggWorker}


class FakeEndpoint:
    """Dynamo's, of a worker whose entry in discovery is there while ``entered``."""

    entered = True
    looks = 0
    unregistered = 0
    clients = 0

    async def client(self) -> FakeEndpoint:
        self.clients += 1
        return self

    def connection_id(self) -> int:
        return 7

    def instance_ids(self) -> list[int]:
        self.looks += 1
        return [7] if self.entered else []

    async def unregister_endpoint_instance(self) -> None:
        self.unregistered += 1


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(bounded())


async def make(kind: str, model: Path) -> Any:
    words = ["--model", str(model), "--served-model-name", "tiny", "--discovery-backend", "file"]
    worker, _ = await KINDS[kind].from_args(words)
    return worker


async def started(kind: str, model: Path) -> Any:
    worker = await make(kind, model)
    await worker.start(1)
    return worker


def bootstrap_info(room: int) -> dict[str, Any]:
    host = advertised_host("127.0.0.1", fakes.KEY)
    return {"bootstrap_host": host, "bootstrap_port": 1, "bootstrap_room": room}


def prompt(kind: str, room: int = 1, max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    request = {"token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": max_tokens}, **fields}
    if kind == "decode":
        request["bootstrap_info"] = bootstrap_info(room)
        done = fakes.FakeBootstrap.room(room)
        done.first = FirstToken(first=SampledToken(4, -0.5, ((4, -0.5),)), reused_tokens=fakes.REUSED)
        done.settled.set()
    return request


async def collect(worker: WaveppWorker, request: dict[str, Any], context: Context) -> list[dict[str, Any]]:
    return [chunk async for chunk in worker.generate(request, context)]


def reasons(chunks: list[dict[str, Any]]) -> list[str]:
    return [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")]


def tokens(chunks: list[dict[str, Any]]) -> list[int]:
    return [token for chunk in chunks for token in chunk["token_ids"]]
