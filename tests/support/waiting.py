"""Waiting, for a limited time, for what other threads do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
