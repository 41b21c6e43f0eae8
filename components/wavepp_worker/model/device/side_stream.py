"""Copies that a thread waits for, beside the waves of a GPU.

Written after torch 2.13 and driven in tests by a fake of the calls to ``torch.cuda``; not run on a GPU yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

from wavepp_worker.errors import StepTimeout
from wavepp_worker.model.device.cuda_device import await_event, moment, use_device

MAX_SECONDS = 300.0
"""The longest that a thread waits for copies, and for the waves before them."""

LOOK_SECONDS = 0.0005
"""Between two looks of an event loop at a moment: a wave takes some milliseconds."""

_FAULT = "the GPU has not computed or copied KV"

Moment: TypeAlias = "torch.cuda.Event | None"
"""When all that was queued until then is done; None on the CPU, where it is."""


class SideStream:
    """A stream for what reads or writes KV beside the waves; on the CPU it is done where it stands. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def now(self) -> Moment:
        """The moment at which all waves that are queued now are done."""
        if self._stream is None:
            return None
        use_device(self._device)
        return moment(torch.cuda.current_stream(self._device))

    @contextmanager
    def copies(self, after: Moment) -> Iterator[None]:
        """What is queued within begins ``after`` that, and is done when this returns.

        Raises:
            StepTimeout: it takes longer than ``MAX_SECONDS``.
        """
        if self._stream is None:
            yield
            return
        use_device(self._device)
        if after is not None:
            self._stream.wait_event(after)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            # Also of copies of which only some were queued: their places may be others' from then on.
            self.wait(moment(self._stream))

    async def reached(self, until: Moment) -> None:
        """Return at that moment, and let the event loop go on meanwhile.

        Raises:
            StepTimeout: that is more than ``MAX_SECONDS`` from now.
        """
        use_device(self._device)
        latest = time.monotonic() + MAX_SECONDS
        while until is not None and not until.query():
            if time.monotonic() > latest:
                raise StepTimeout(f"{_FAULT} after {MAX_SECONDS:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)

    def wait(self, until: Moment) -> None:
        """Return at that moment.

        Raises:
            StepTimeout: that is more than ``MAX_SECONDS`` from now.
        """
        if until is not None:
            await_event(until, MAX_SECONDS, _FAULT)
