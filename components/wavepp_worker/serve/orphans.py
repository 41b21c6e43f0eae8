"""Processes whose parent died before them: they come to the launcher, which sees them off."""

from __future__ import annotations

import ctypes
import os
import time

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """From now on descendants that lose their parent become this process's children.

    Else they would go to process 1, which in many containers never collects the dead.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect(process_group: int | None, seconds: float = 1.0) -> None:
    """Collect dead children, waiting up to ``seconds`` for those that were killed but are not dead yet.

    Args:
        process_group: only those in it; None means all children, of which none may be somebody else's to wait
            for.
    """
    deadline = time.monotonic() + seconds
    which = -1 if process_group is None else -process_group
    while True:
        try:
            pid, _ = os.waitpid(which, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
