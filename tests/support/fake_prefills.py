"""A stand-in for a prefill worker's engine and rooms, as the intake of jobs knows them: answers after a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wavepp_worker import token_ids
from wavepp_worker.errors import EngineDead, InvalidRequest, RequestAborted, RequestFailed
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult, Timings

VOCABULARY = 300


class FakePrefills:
    """The first token is the prompt's last, plus one.

    Attributes:
        seconds: that each takes, once it is admitted.
        release: once set, none takes longer.
        admits: requests that run at once; others wait.
        failures: how many requests fail before the first that does not; 1000 stands for all.
        fails: whether one fails beside those.
        asked: every request.
        most_waiting: the most that were not admitted at one time.
    """

    def __init__(self, seconds: float = 0.0, admits: int = 1000, model_id: str = "") -> None:
        self.seconds, self.admits = seconds, admits
        self.release = threading.Event()
        self.failures = 0
        self.fails: Callable[[PrefillRequest], bool] = lambda request: False
        self.dead = False
        self.asked: list[PrefillRequest] = []
        self.aborted: list[str] = []
        self.running = self.waiting = self.most_waiting = 0
        self.engine: Any = SimpleNamespace(
            config=SimpleNamespace(model=Path("/nowhere")),
            max_model_len=1024,
            info=SimpleNamespace(model_id=model_id),
            stats=lambda: SimpleNamespace(queued=self.waiting),
        )

    def address(self, bootstrap_room: int) -> BootstrapAddress:
        return BootstrapAddress(host="127.0.0.1", port=4242, room=bootstrap_room, secret=Secret(b"s" * 32))

    async def prefill(
        self,
        request: PrefillRequest,
        bootstrap_room: int,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
    ) -> PrefillResult:
        assert request.handoff
        return await self._prefill(request, is_stopped, on_admitted)

    async def prefill_alone(
        self,
        request: PrefillRequest,
        is_stopped: Callable[[], bool],
        on_admitted: Callable[[], None] | None = None,
    ) -> PrefillResult:
        assert not request.handoff
        return await self._prefill(request, is_stopped, on_admitted)

    async def _prefill(
        self, request: PrefillRequest, is_stopped: Callable[[], bool], on_admitted: Callable[[], None] | None
    ) -> PrefillResult:
        ids = token_ids.unpack(request.tokens)
        if ids.max(initial=0) >= VOCABULARY:
            raise InvalidRequest(f"token id {ids.max()} is outside the vocabulary of {VOCABULARY} tokens")
        self.asked.append(request)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            while self.running >= self.admits:
                await self._wait(0.01, request, is_stopped)
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            if on_admitted is not None:
                on_admitted()
            await self._wait(self.seconds, request, is_stopped)
        finally:
            self.running -= 1
        if self.fails(request):
            raise RequestFailed("it fails")
        if len(self.asked) <= self.failures:
            raise RequestFailed(f"attempt {len(self.asked)} failed")
        return PrefillResult(
            request_id=request.request_id,
            first=SampledToken(int(ids[-1]) + 1, -0.5, ((int(ids[-1]) + 1, -0.5),)),
            prompt_tokens=len(ids),
            reused_tokens=0,
            timings=Timings(queued=0.0, admission=0.0, execution=self.seconds, total=self.seconds),
        )

    async def _wait(self, seconds: float, request: PrefillRequest, is_stopped: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            if self.dead:
                raise EngineDead("a rank died")
            if is_stopped():
                self.aborted.append(request.request_id)
                raise RequestAborted(f"request {request.request_id} was aborted by its caller")
            if loop.time() >= end or self.release.is_set():
                return
            await asyncio.sleep(0.005)
