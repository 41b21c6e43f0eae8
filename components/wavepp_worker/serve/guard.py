"""Leaves nothing behind: finds every process of a run by a mark in its environment, and its directory.

Also a script of its own: it waits for its standard input to end, which it does when the launcher is gone for
whatever reason, and then cleans up. So it uses the standard library alone, and starts in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

MARK = "WAVEPP_RUN_DIR"
"""The environment variable that says which run a process belongs to; children inherit it."""

_PATIENCE_SECONDS = 5.0


def processes() -> Iterator[tuple[int, str]]:
    """Every process of a run that this user may look at, root at everybody's: its id, and the run's directory."""
    mark = f"{MARK}=".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            continue
        for each in variables:
            if each.startswith(mark):
                yield int(name), os.fsdecode(each[len(mark) :])


def processes_of(run_dir: str) -> list[int]:
    """Process ids of the run but this one's, at whatever depth and in whatever session they are."""
    return [pid for pid, directory in processes() if directory == run_dir and pid != os.getpid()]


def clean(run_dir: str) -> list[int]:
    """Kill what is left of the run and remove its directory.

    Returns:
        Processes that would not die within five seconds; normally none.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    quiet_rounds = 0
    while True:
        left = processes_of(run_dir)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        # A process that was being started while we looked shows up the second time.
        quiet_rounds = 0 if left else quiet_rounds + 1
        if quiet_rounds == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    shutil.rmtree(run_dir, ignore_errors=True)
    return left


def main() -> None:
    """Wait for the end of standard input, then clean up the run given as the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clean(sys.argv[1])


if __name__ == "__main__":
    main()
