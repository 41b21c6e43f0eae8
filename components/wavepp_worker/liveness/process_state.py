"""What the operating system says of a process: why it ended, and what it does while it says nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

_SIGNALS = {
    signal.SIGSEGV: "it touched memory that is not its own: a fault in native code",
    signal.SIGBUS: "a file it had mapped was cut short, or its disk failed",
    signal.SIGABRT: "native code gave up",
    signal.SIGFPE: "a fault of arithmetic in native code",
    signal.SIGILL: "an instruction this processor does not have",
}
_STATES = {
    "T": "is stopped by a signal (SIGCONT continues it)",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel, for a disk or a driver",
    "Z": "has ended",
    "R": "runs, but does not let its other threads run",
    "S": "sleeps, and does not let its other threads run",
}
_CGROUPS = Path("/sys/fs/cgroup")


def oom_kills() -> int | None:
    """Processes of this control group that the kernel killed for want of memory so far; None if it does not say."""
    for path in _memory_events():
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return None


def _memory_events() -> Iterator[Path]:
    """Where the count may be: of our own group as the machine sees it, as a container does, and in version 1."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield _CGROUPS / path.strip("/") / "memory.events"
        elif controllers == "memory":
            yield _CGROUPS / "memory" / path.strip("/") / "memory.oom_control"
    yield _CGROUPS / "memory.events"
    yield _CGROUPS / "memory" / "memory.oom_control"


def exit_reason(code: int, oom_kills_before: int | None = None) -> str:
    """How a process ended, to follow its name: ``ended with exit code 3``.

    Args:
        code: its exit code, negative for a signal.
        oom_kills_before: ``oom_kills()`` when it was started.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"was ended by signal {-code}"
    if number == signal.SIGKILL:
        now = oom_kills()
        if now is not None and oom_kills_before is not None and now > oom_kills_before:
            why = "out of memory: the kernel killed for that in this control group; give it more, or lower kv_tokens"
        else:
            why = "by somebody, or by the kernel for want of memory"
    else:
        why = _SIGNALS.get(number, "")
    return f"was ended by {number.name}" + (f" ({why})" if why else "")


def process_state(pid: int) -> str:
    """What a process does, to follow its name: ``is stopped by a signal``."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "is gone"
    return _STATES.get(letter, f"is in state {letter}")
