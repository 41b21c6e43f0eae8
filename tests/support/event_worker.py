"""A Dynamo worker that has no model: it publishes as reusable whatever a test tells it over its control ``apply``.

``python -m tests.support.event_worker WORDS…``, with the words of Dynamo's sample engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from dynamo.common.backend.engine import EngineConfig
from dynamo.common.backend.publisher import KvEventSource, ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.backend.sample_engine import SampleLLMEngine
from wavepp_worker.dynamo import kv_event_thread
from wavepp_worker.dynamo.kv_event_thread import KvEventThread
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

BLOCK = 4
"""Tokens of a block."""


class EventWorker(SampleLLMEngine):
    """Dynamo's sample engine but for its events."""

    async def start(self, worker_id: int) -> EngineConfig:
        config = await super().start(worker_id)
        self._events = KvEventThread(BLOCK)
        self._events.start()
        return dataclasses.replace(config, llm=dataclasses.replace(config.llm, kv_cache_block_size=BLOCK))

    async def kv_event_sources(self) -> list[KvEventSource]:
        return [ZmqSource(self._events.endpoint, dp_rank=0)]

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def supported_controls(self) -> set[str]:
        return {"apply", "leave", "return", "mute", "unmute"}

    async def engine_control(self, control: str, body: dict[str, Any]) -> dict[str, Any]:
        if control == "leave":
            await self._endpoint.unregister_endpoint_instance()
        elif control == "return":
            await self._endpoint.register_endpoint_instance()
        elif control == "mute":  # nothing is told again
            self._events._pending.tell_again = lambda: None  # type: ignore[method-assign]
        elif control == "unmute":
            del self._events._pending.tell_again
        for delta in msgspec.convert(body.get("deltas", []), list[IndexDelta]):
            self._events.on_index(delta)
        return {"worker": str(self._endpoint.connection_id())}

    async def cleanup(self) -> None:
        self._events.close()
        await super().cleanup()


if __name__ == "__main__":
    kv_event_thread.FIRST_AGAIN_SECONDS = kv_event_thread.AGAIN_SECONDS = 1.0
    run(EventWorker)
