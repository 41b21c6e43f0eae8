"""What an operator may ask where prompts are prefilled: why they wait, what is held, where time goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from wavepp_worker.dynamo.control_bodies import Control, asked_ids, check_names, seconds
from wavepp_worker.dynamo.metrics import PrefillMetrics
from wavepp_worker.dynamo.request_ids import ended_or_unknown
from wavepp_worker.errors import InvalidRequest
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts

PROFILE_SECONDS = 10.0
"""How long a profile takes unless it is told otherwise; whoever forgets to stop it has it end by itself."""
MOST_PROFILE_SECONDS = 300.0


class PrefillControls:
    """The controls of one replica's ranks, beside those that every worker has; see ``WaveppWorker.controls``."""

    def __init__(self, engine: PrefillEngine, metrics: PrefillMetrics) -> None:
        """``metrics``: which also know the requests that ended last."""
        self._engine = engine
        self._metrics = metrics

    def by_name(self) -> dict[str, Control]:
        return {
            "why": self._why,
            "clear_kv_blocks": self._clear_kv_blocks,
            "dump_state": self._dump_state,
            "start_profile": self._start_profile,
            "stop_profile": self._stop_profile,
        }

    async def _clear_kv_blocks(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("clear_kv_blocks", body, {})
        return await asyncio.to_thread(self._engine.clear)

    async def _dump_state(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("dump_state", body, {})
        return await asyncio.to_thread(self._engine.dump_state)

    async def _start_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names(
            "start_profile",
            body,
            {"seconds": "how long at most", "path": "of a new file on the worker's host"},
        )
        path, limit = body.get("path"), seconds(body, "seconds", PROFILE_SECONDS, MOST_PROFILE_SECONDS)
        if path is not None and not isinstance(path, str):
            raise InvalidRequest(f"path={path!r} should be a text")
        to = await asyncio.to_thread(self._engine.start_profile, None if path is None else Path(path), limit)
        return {"path": str(to), "seconds": limit}

    async def _stop_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("stop_profile", body, {})
        return await asyncio.to_thread(self._engine.stop_profile)

    async def _why(self, body: dict[str, Any]) -> dict[str, Any]:
        """Where the request is whose ``request_id`` a client got, or logs have; without, those that wait longest."""
        ids = asked_ids(body)
        for request_id in ids:
            found = await asyncio.to_thread(self._engine.why, request_id)
            if found or request_id is None:
                return _explained(found)
        return _explained([ended_or_unknown([each for each in ids if each], self._metrics.timing)])


def _explained(requests: Sequence[Whereabouts]) -> dict[str, Any]:
    return {"requests": msgspec.to_builtins(requests)}
