"""When the services of a run, which stop one after the other, have to have ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wavepp_worker.liveness.stop_times import KILL_SECONDS, StopTimes, grace_seconds
from wavepp_worker.serve.process import Process


def stop_ends(
    processes: Sequence[Process], environment: Mapping[str, str], times: StopTimes
) -> dict[str, float]:
    """Seconds for each service, from the order to stop the first of them on; each leaves those after it what they need.

    Args:
        processes: in the order in which they stop.
        environment: what each has before its own variables.
    """
    graces: dict[str, float] = {}
    for process in processes:
        # Dynamo has workers alone go on for it, one service after the other.
        grace = grace_seconds({**environment, **process.env}) if process.kind == "worker" else 0.0
        graces[process.service] = max(grace, graces.get(process.service, 0.0))
    ends, passed = {}, float(max(times.requests, times.answers))
    for service, grace in graces.items():
        passed += grace + KILL_SECONDS / len(graces)
        ends[service] = passed
    return ends
