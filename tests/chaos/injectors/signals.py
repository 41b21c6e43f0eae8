"""Signals to exactly the process that was meant, even if its id is given to another meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


def send(pid: int, number: signal.Signals) -> None:
    """ProcessLookupError if it is gone."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does not run inside the context. ProcessLookupError if it is gone."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
    finally:
        os.close(process)
