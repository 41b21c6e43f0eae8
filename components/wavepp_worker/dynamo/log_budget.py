"""Logging that whoever provokes it cannot fill a disk with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp.http import HttpProcessingError

MOST_RECORDS = 10
"""In each period of ``PERIOD_SECONDS``."""
PERIOD_SECONDS = 60.0


class LogBudget(logging.Filter):
    """Lets so many records pass a period, and has the first of the next say how many did not.

    What a client sent that is no HTTP is told in one line, as a traceback says nothing more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._began = clock()
        self._passed = 0
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._began >= PERIOD_SECONDS:
            self._began, self._passed = now, 0
        if self._passed == MOST_RECORDS:
            self._dropped += 1
            return False
        self._passed += 1
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            text = f"{text}: {error.message.splitlines()[0] if error.message else type(error).__name__}"
            record.exc_info = None
        if self._dropped:
            text = f"{text} ({self._dropped} further records were left out before)"
            self._dropped = 0
        record.msg, record.args = text, ()
        return True
