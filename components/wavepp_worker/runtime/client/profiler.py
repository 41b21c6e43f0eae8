"""Has all ranks record what they do for a while, and makes one timeline of it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from wavepp_worker.errors import EngineDead, InvalidRequest, RequestFailed, WaveppError
from wavepp_worker.runtime.client.rank_replies import RankReplies
from wavepp_worker.runtime.protocol.commands import StartProfile, StopProfile
from wavepp_worker.runtime.protocol.events import ProfileChanged
from wavepp_worker.runtime.trace.perfetto import write_timeline
from wavepp_worker.runtime.trace.recording import read_recording

logger = logging.getLogger(__name__)

REPLY_SECONDS = 10.0
"""That all ranks may take to begin or end a recording; what one that hangs has recorded is there without its reply."""


class Profiler:
    """At most one profile at a time. Thread-safe; both methods may block."""

    def __init__(self, ranks: int, replies: RankReplies[ProfileChanged], *, always_on: bool) -> None:
        """``always_on``: the ranks record all the time for another file."""
        self._ranks = ranks
        self._replies = replies
        self._always_on = always_on
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._parts: Path | None = None
        self._timer: threading.Timer | None = None
        self._closed = False

    def start(self, path: Path | None, seconds: float) -> Path:
        """Have all ranks record from now on, for ``seconds`` at most; returns where the profile will be.

        Args:
            path: of a new file, absolute; None for one in the process's temporary directory.

        Raises:
            InvalidRequest: one is under way, or the file cannot be made.
            RequestFailed: some rank cannot record.
            RequestTimeout: some rank did not say that it does.
            EngineDead: the engine is not running.
        """
        if self._always_on:
            raise InvalidRequest(
                "the ranks record all the time, as timeline is set; the file is written at the end"
            )
        with self._lock:
            if self._closed:
                raise EngineDead("the engine was closed; make a new one")
            if self._parts is not None:
                raise InvalidRequest(
                    f"a profile is under way, to {self._path}; stop it first, or wait for its end"
                )
            self._path = _new_file(path)
            try:
                self._parts = parts = Path(tempfile.mkdtemp(prefix="wavepp-profile-"))
                begun = self._replies.gather_all(
                    lambda number: StartProfile(profile_id=number, directory=str(parts), seconds=seconds),
                    REPLY_SECONDS,
                )
                failed = [f"rank {each.rank}: {each.error}" for each in begun if each.error]
                if failed:
                    raise RequestFailed("; ".join(failed))
            except BaseException as error:
                with contextlib.suppress(EngineDead):
                    # Those that record would refuse to begin again; what they reply is of no use.
                    self._replies.gather(lambda number: StopProfile(profile_id=number), 0.0)
                self._drop()
                if isinstance(error, OSError):
                    raise RequestFailed(f"a profile has no room to be recorded: {error}") from error
                raise
            self._timer = threading.Timer(seconds, self._over, (parts,))
            self._timer.daemon = True
            self._timer.start()
            return self._path

    def stop(self) -> dict[str, Any]:
        """End the profile and write it.

        Returns:
            ``{"path", "slices", "silent_ranks"}``: how many slices of time it has, and who did not say that they
            are done.

        Raises:
            InvalidRequest: none is under way.
            RequestFailed: it cannot be written.
            EngineDead: the engine is not running.
        """
        with self._lock:
            return self._end()

    def close(self) -> None:
        """No more is recorded, and what was is dropped with its file; idempotent."""
        with self._lock:
            self._closed = True
            self._drop()

    def _over(self, parts: Path) -> None:
        with self._lock:
            if self._parts != parts:
                return
            try:
                self._end()
            except WaveppError as error:
                logger.warning("the profile could not be written: %s", error)

    def _end(self) -> dict[str, Any]:
        path, parts = self._path, self._parts
        if path is None or parts is None:
            raise InvalidRequest("no profile is under way; start one first")
        try:
            ended = self._replies.gather(lambda number: StopProfile(profile_id=number), REPLY_SECONDS)
            heard = {each.rank for each in ended}
            timelines = [read_recording(parts / str(rank), rank) for rank in range(self._ranks)]
            write_timeline(parts / "whole", timelines)
            # Its owner's alone, as the file was made.
            shutil.copyfile(parts / "whole", path)
        except BaseException as error:
            self._drop()
            if isinstance(error, OSError):
                raise RequestFailed(f"the profile cannot be written to {path}: {error}") from error
            raise
        self._forget()
        return {
            "path": str(path),
            "slices": sum(len(each.slices) for each in timelines),
            "silent_ranks": [rank for rank in range(self._ranks) if rank not in heard],
        }

    def _drop(self) -> None:
        """What is under way is over, and leaves no file."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._forget()

    def _forget(self) -> None:
        parts, self._parts, self._path = self._parts, None, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if parts is not None:
            shutil.rmtree(parts, ignore_errors=True)


def _new_file(path: Path | None) -> Path:
    """Nobody's file is written over, and nobody else may read what requests there were."""
    if path is None:
        file, name = tempfile.mkstemp(prefix="wavepp-profile-", suffix=".json")
        os.close(file)
        return Path(name)
    if not path.is_absolute():
        raise InvalidRequest(f"path={str(path)!r} should be absolute")
    try:
        path.touch(0o600, exist_ok=False)
    except (OSError, ValueError) as error:
        # A ValueError is of a name that no file can have.
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"path={str(path)!r} cannot be made: {why}") from error
    return path
