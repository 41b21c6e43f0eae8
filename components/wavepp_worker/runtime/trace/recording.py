"""A rank's slices on disk: written as the rank runs, so that they are there however it ends."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec

from wavepp_worker.runtime.trace.slices import RankTimeline, Slice
from wavepp_worker.runtime.trace.timeline import MAX_SLICES, Timeline

FLUSH_SECONDS = 0.25
_LENGTH_BYTES = 4

logger = logging.getLogger(__name__)


class SliceBatch(msgspec.Struct, frozen=True, array_like=True):
    """Some slices, and how many before them were dropped since the batch before."""

    dropped: int
    slices: list[Slice]


class Recording:
    """Moves what a rank's ``timeline`` records to a file, in a thread of its own; the engine's process reads it.

    When the file holds half of ``limit`` it takes the place of the file before it, which is dropped: the
    latest slices are kept, at most ``limit``, plus what is recorded between two writes.
    """

    def __init__(self, path: Path, timeline: Timeline | None = None, limit: int = MAX_SLICES) -> None:
        """Create ``path``; without a ``timeline``, with one of its own.

        Raises:
            OSError: it cannot be written.
        """
        self.timeline = timeline or Timeline(limit)
        self._path = path
        self._half = max(1, limit // 2)
        self._file = path.open("wb")
        self._encoder = msgspec.msgpack.Encoder()
        self._held = self._held_before = 0
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Write what was recorded so far.

        Raises:
            OSError: it cannot be written.
        """
        with self._writing:
            if self._file.closed:
                return
            slices, dropped = self.timeline.take()
            if not slices:
                return
            if self._held >= self._half:
                self._file.close()
                os.replace(self._path, _earlier_half(self._path))
                self._file = self._path.open("wb")
                dropped += self._held_before
                self._held_before, self._held = self._held, 0
            frame = self._encoder.encode(SliceBatch(dropped, slices))
            self._file.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
            self._file.flush()
            self._held += len(slices) + dropped

    def close(self) -> None:
        """Write the rest; idempotent. A file that cannot be written is left as it is, and said so."""
        self._closing.set()
        try:
            self.flush()
            with self._writing:
                self._file.close()
        except OSError as error:
            logger.warning("the timeline lacks the last slices of this rank: %s", error)

    def _run(self) -> None:
        try:
            while not self._closing.wait(FLUSH_SECONDS):
                self.flush()
        except OSError as error:
            logger.warning("the timeline of this rank ends here: %s", error)


def read_recording(path: Path, rank: int) -> RankTimeline:
    """What ``Recording`` left at ``path``, also if it was stopped in the middle of a write."""
    decoder = msgspec.msgpack.Decoder(SliceBatch)
    slices: list[Slice] = []
    dropped = 0
    for part in (_earlier_half(path), path):
        content = memoryview(part.read_bytes() if part.exists() else b"")
        while len(content) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
            if len(content) < end:
                break
            batch = decoder.decode(content[_LENGTH_BYTES:end])
            slices += batch.slices
            dropped += batch.dropped
            content = content[end:]
    return RankTimeline(rank, tuple(slices), dropped)


def _earlier_half(path: Path) -> Path:
    """The file that ``path`` took the place of, with the slices before its own."""
    return path.with_name(path.name + ".before")
