"""The order to stop that a frontend was given: its answers end first; until then Dynamo hears nothing of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

from wavepp_worker.dynamo.frontend_proxy import FrontendProxy
from wavepp_worker.liveness.stop_times import LEAVING

TELL_SECONDS = 5.0
"""Between two lines that say what is waited for."""
_POLL_SECONDS = 0.05


class FrontendStop:
    """Waits for the answers of a proxy. Used on the event loop alone."""

    def __init__(self, proxy: FrontendProxy, seconds: float) -> None:
        """``seconds``: how long answers have to end."""
        self._proxy = proxy
        self._seconds = seconds
        self._waiting: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def given(self) -> bool:
        return self._waiting is not None

    def give(self, then: Callable[[], Any]) -> None:
        """Call ``then`` once all answers have ended, or their time is over; a second order waits no longer."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(then))
        else:
            self._hurry.set()

    async def _wait(self, then: Callable[[], Any]) -> None:
        upstream, began = self._proxy.upstream, time.monotonic()
        self._proxy.refuse(
            "the frontend was told to stop and takes no more requests; ask again once it is back"
        )
        waiting = f"waiting for {_answers(len(upstream))}, for at most {self._seconds:.0f} s"
        _say(f"{LEAVING}told to stop; {waiting if len(upstream) else 'nothing to wait for'}")
        told = began
        while len(upstream) and not self._hurry.is_set():
            left = began + self._seconds - time.monotonic()
            if left <= 0:
                break
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                _say(f"still waiting for {_answers(len(upstream))}, for at most {left:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        if len(upstream):
            _say(f"{_answers(len(upstream))} had too little time, and end with a sentence for the client")
            upstream.end_all(
                f"the frontend was told to stop, and this request had {self._seconds:.0f} s to end (--stop-timeout of "
                "the launcher)"
            )
        then()


class FrontendLoop(uvloop.Loop):
    """Has what would act on a signal at once wait for ``order``, once there is one."""

    order: FrontendStop | None = None

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        def act() -> None:
            if self.order is None:
                callback(*args)
            else:
                self.order.give(lambda: callback(*args))

        super().add_signal_handler(sig, act)


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
