"""How many jobs went through a graph's queue, and are left when nobody waits for anything any more."""

from __future__ import annotations

import os
import time
from unittest import mock

from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.support.graph_process import RunningGraph

EMPTY_SECONDS = 20.0
"""After a fault, jobs of workers that are gone are begun again and dropped only once their silence is noticed."""


def queue_jobs(graph: RunningGraph) -> tuple[int, int] | None:
    """Jobs that came to the queue in all, and that are there and stay there; None for a graph without one."""
    access = graph.state().get("queue")
    if not access:
        return None
    with mock.patch.dict(os.environ, access), PrefillQueue(graph.model) as queue:
        end = time.monotonic() + EMPTY_SECONDS
        streams = queue._client._streams
        while (left := queue._call(streams.jobs())) > 0 and time.monotonic() < end:
            time.sleep(0.2)
        return queue._call(streams.last_number()), left
