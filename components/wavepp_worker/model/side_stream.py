"""Copies that a thread waits for, beside the waves of a GPU.

Written after torch 2.13 and driven in tests by a fake of the calls to ``torch.cuda``; not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

from wavepp_worker.model.cuda_device import await_event, moment

MAX_SECONDS = 300.0
"""The longest that a thread waits for copies, and for the waves before them."""

Moment: TypeAlias = "torch.cuda.Event | None"
"""When all that was queued until then is done; None on the CPU, where it is."""


class SideStream:
    """A stream for what reads or writes KV beside the waves; on the CPU it is done where it stands. Thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def now(self) -> Moment:
        """The moment at which all waves that are queued now are done."""
        return None if self._stream is None else moment(torch.cuda.current_stream(self._device))

    @contextmanager
    def copies(self, after: Moment) -> Iterator[None]:
        """What is queued within begins ``after`` that, and is done when this returns.

        Raises:
            StepTimeout: it takes longer than ``MAX_SECONDS``.
        """
        if self._stream is None:
            yield
            return
        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            yield
        self.wait(moment(self._stream))

    def wait(self, until: Moment) -> None:
        """Return at that moment.

        Raises:
            StepTimeout: that is more than ``MAX_SECONDS`` from now.
        """
        if until is not None:
            await_event(until, MAX_SECONDS, "the GPU has not computed or copied KV")
