"""When a process that does not answer, or says that it is not well, has to be ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavepp_worker.liveness.stop_times import StopTimes

UNHEALTHY_SECONDS = 5.0
"""How long a process may say that it is not well."""


@dataclass(frozen=True)
class KeepLimits:
    """What a process is allowed.

    Attributes:
        start_seconds: until it is ready.
        silent_seconds: without an answer to a health check, once it was ready.
        restarts_per_minute: most times it is started again in any minute.
        stop: once it is told to.
    """

    start_seconds: float = 300.0
    silent_seconds: float = 60.0
    restarts_per_minute: int = 5
    stop: StopTimes = field(default_factory=StopTimes)


class HealthWatch:
    """One life of a process, judged by the status of its answers.

    Attributes:
        ready: it has said that it is well.
    """

    def __init__(self, limits: KeepLimits, began: float) -> None:
        """``began``: when it was started; all times are monotonic seconds."""
        self._limits = limits
        self._began = began
        self._sick_since: float | None = None
        self._silent_since: float | None = None
        self.ready = False

    def judge(self, status: int, now: float) -> str | None:
        """Take an answer's HTTP status, 0 if there was none; returns why the process has to be ended, if it has to."""
        self.ready = self.ready or status == 200
        if not self.ready:
            late = now - self._began > self._limits.start_seconds
            return f"is not ready after {now - self._began:.0f} s (--start-timeout)" if late else None
        self._silent_since = (self._silent_since or now) if status == 0 else None
        self._sick_since = (self._sick_since or now) if status >= 500 else None
        if self._silent_since is not None and now - self._silent_since > self._limits.silent_seconds:
            return f"has not answered a health check for {now - self._silent_since:.0f} s (--health-timeout)"
        if self._sick_since is not None and now - self._sick_since > UNHEALTHY_SECONDS:
            return f"has reported itself unhealthy for {now - self._sick_since:.0f} s"
        return None
