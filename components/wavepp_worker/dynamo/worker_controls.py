"""What an operator may ask of every worker, and how whatever is asked of one is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from wavepp_worker.dynamo.control_bodies import Control, check_names, seconds
from wavepp_worker.errors import InvalidRequest, WaveppError
from wavepp_worker.worker_description import WorkerDescription

PAUSE_WAIT_SECONDS = 30.0
"""How long a worker that is paused waits for its requests to end, unless it is told otherwise; as Dynamo's own do."""
MOST_PAUSE_WAIT_SECONDS = 600.0

IN_TURN = ("audit", "clear_kv_blocks", "dump_state", "start_profile", "stop_profile")
"""Controls of which each takes a thread for many seconds where a rank hangs or many requests run; who asks for the same
again waits for its turn without one, as others need some of the few."""


class Controlled(Protocol):
    """A worker, as its controls see it."""

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        ...

    def audit(self) -> dict[str, Any]:
        """Prove at rest that nothing leaked; may block for half a minute."""
        ...

    def description(self) -> WorkerDescription:
        """What it runs, and under which id frontends know it."""
        ...

    def timings(self, last: int) -> list[dict[str, Any]]:
        """Where the time of the last requests went, newest first."""
        ...

    async def pause(self, seconds: float) -> bool:
        """Take no new requests; whether all others ended within ``seconds``."""
        ...

    async def resume(self) -> bool:
        """Take requests again; whether it was paused."""
        ...


class WorkerControls:
    """The controls that every worker has, and the answers of all."""

    def __init__(self, worker: Controlled) -> None:
        self._worker = worker
        self._turns = {control: asyncio.Lock() for control in IN_TURN}

    def by_name(self) -> dict[str, Control]:
        return {
            "audit": self._audit,
            "describe": self._describe,
            "timings": self._timings,
            "pause": self._pause,
            "resume": self._resume,
        }

    async def answer(self, controls: Mapping[str, Control], name: str, body: Any) -> dict[str, Any]:
        """Answer one of ``controls``; ``status`` is ``ok``, or ``error`` with a ``message``."""
        asked = controls.get(name)
        if asked is None:
            known = ", ".join(sorted(controls))
            return {"status": "error", "message": f"there is no control {name!r}; these are: {known}"}
        if not isinstance(body, dict):
            return {"status": "error", "message": f"the body of {name} should be a JSON object, or empty"}
        try:
            async with self._turns.get(name, contextlib.nullcontext()):
                return {"status": "ok", **await asked(body)}
        except InvalidRequest as error:
            return {"status": "error", "message": str(error)}
        except WaveppError as error:
            return {"status": "error", "message": f"{type(error).__name__}: {error}"}

    async def _audit(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("audit", body, {})
        return await asyncio.to_thread(self._worker.audit)

    async def _describe(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("describe", body, {})
        return dict(msgspec.to_builtins(self._worker.description()))

    async def _timings(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("timings", body, {"last": "of how many requests"})
        last = body.get("last", 16)
        if isinstance(last, bool) or not isinstance(last, int) or last < 1:
            raise InvalidRequest(f"last={last!r} should be a whole number above 0")
        return {"timings": self._worker.timings(last)}

    async def _pause(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("pause", body, {"timeout_s": "how long to wait for requests to end"})
        wait = seconds(body, "timeout_s", PAUSE_WAIT_SECONDS, MOST_PAUSE_WAIT_SECONDS)
        quiet = await self._worker.pause(wait)
        return {"paused": True, "quiet": quiet, "running": self._worker.running}

    async def _resume(self, body: dict[str, Any]) -> dict[str, Any]:
        check_names("resume", body, {})
        return {"paused": False, "was_paused": await self._worker.resume()}
