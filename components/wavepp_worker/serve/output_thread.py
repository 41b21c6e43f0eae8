"""Standard output that holds nobody up: what cannot be written now waits, and what finds no room is dropped."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

MOST_WAITING = 1 << 22
"""Characters that wait to be written: some ten thousand lines."""
CLOSE_SECONDS = 2.0
"""How long the last lines have at the end."""


class OutputThread:
    """A text file over standard output, for a ``rich`` console. Started at once; any thread may write.

    Whoever reads a pipe may stop reading it, and then writing to it takes for ever; a disk may be full. Neither is
    a reason to stop looking after processes.
    """

    def __init__(self) -> None:
        # Not by way of sys.stdout: Python waits at its end for whoever writes there, and aborts.
        self._descriptor = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._characters = 0
        self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        """Have it written; if no room is left it is dropped, which is told where it is missing."""
        with self._changed:
            if self._characters + len(text) > MOST_WAITING:
                self._dropped += text.count("\n")
            else:
                self._add(self._missing() + text)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: what waits is written as soon as it can be."""

    def close(self) -> None:
        """Wait for what was written last, at most ``CLOSE_SECONDS``; nothing may be written afterwards."""
        with self._changed:
            self._closed = True
            self._add(self._missing())
        self._thread.join(CLOSE_SECONDS)

    def _add(self, text: str) -> None:
        self._waiting.append(text)
        self._characters += len(text)
        self._changed.notify()

    def _missing(self) -> str:
        dropped, self._dropped = self._dropped, 0
        return f"[{dropped} lines are missing here, as nobody read them]\n" if dropped else ""

    def _run(self) -> None:
        while data := self._take():
            # All at once: while others compute, each write may have to wait for its turn.
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def _take(self) -> memoryview:
        """All that waits, once there is something; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._characters or self._closed)
            text = "".join(self._waiting)
            self._waiting.clear()
            self._characters = 0
        return memoryview(text.encode(self._encoding, "replace"))
