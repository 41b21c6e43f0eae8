"""Copies between a GPU and host memory, beside the waves that the GPU computes.

Written after torch 2.13 and driven in tests by a fake of the calls to ``torch.cuda``; not run on a GPU yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wavepp_worker.model.device.cuda_device import await_event, moment, use_device
from wavepp_worker.model.device.side_stream import MAX_SECONDS


class CopyStream:
    """Runs of copies, on a stream of their own in the order in which they are asked for. Thread-safe.

    Waves that were queued before a run may still read the blocks that it overwrites, or write those that it reads; so
    it touches blocks only after them. Waves that are queued later go on beside it, but for those that *follow* it, as
    they read what it copies, or write where it copied from. On the CPU copies are done when they are asked for.

    Attributes:
        runs: that were asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self.runs = 0
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waves: torch.cuda.Event | None = None
        self._lock = threading.Lock()
        self._queued: deque[tuple[int, torch.cuda.Event]] = deque()
        """Runs that were not known to be done when the latest began."""
        self._followed = 0

    @property
    def beside(self) -> bool:
        """Whether copies may still be under way when they have been asked for."""
        return self._stream is not None

    @contextmanager
    def run(self) -> Iterator[None]:
        """What is queued within is the next run. One at a time."""
        if self._stream is None:
            self.runs += 1
            yield
            return
        use_device(self._device)
        with self._lock:
            while self._queued and self._queued[0][1].query():
                self._queued.popleft()
        self._waves = moment(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            with self._lock:
                self._queued.append((self.runs + 1, moment(self._stream)))
                self.runs += 1

    def touch_blocks(self) -> None:
        """What this run queues from now on reads or writes blocks on the device."""
        if self._stream is not None and self._waves is not None:
            self._stream.wait_event(self._waves)
            self._waves = None

    def follow(self, runs: int) -> None:
        """Have waves that are queued from now on, on the current stream, wait for so many runs."""
        with self._lock:
            if runs <= self._followed:
                return
            # Within the lock: whoever is told that it is not under way may rely on it.
            last = next((done for run, done in reversed(self._queued) if run <= runs), None)
            if last is not None and not last.query():
                torch.cuda.current_stream(self._device).wait_event(last)
            self._followed = runs

    def under_way(self, runs: int) -> bool:
        """Whether some of so many runs are not done, and no wave that was queued follows them."""
        with self._lock:
            return any(self._followed < run <= runs and not done.query() for run, done in self._queued)

    def wait(self, runs: int | None = None) -> None:
        """Return when so many runs are done; by default all that was queued so far, in this run as well.

        Raises:
            StepTimeout: it takes longer than ``MAX_SECONDS``.
        """
        if self._stream is None:
            return
        if runs is None or runs > self.runs:
            until: torch.cuda.Event | None = moment(self._stream)
        else:
            with self._lock:
                until = next((done for run, done in self._queued if run == runs), None)
        if until is not None:
            await_event(until, MAX_SECONDS, "the GPU has not copied blocks between it and host memory")
