"""A process whose discovery is etcd begins with Dynamo's runtime only when etcd is there, and says so if it loses it.

Until it has connected, that runtime lets nothing else of the process run, neither an order to stop nor an answer to a
client, and the longer it fails the longer it pauses: up to half a minute after etcd is back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from wavepp_worker.dynamo.nats_use import Planes
from wavepp_worker.errors import PlaneUnreached
from wavepp_worker.etcd_variables import why_unreached

WAIT_SECONDS = 120.0
"""As long as Dynamo itself tries."""
AGAIN_SECONDS = 0.5

EXIT_RUNTIME_ENDED = 70


def runtime_ended_line(planes: Planes) -> str:
    """What a process says that was not told to stop, and whose runtime has ended all the same."""
    if planes.discovery_backend == "etcd":
        cause = (
            "it does so when it could not renew this process's lease in etcd in time (ETCD_LEASE_TTL, 10 s); the "
            "process has to be started anew to be found again"
        )
    else:
        cause = (
            f"discovery ({planes.discovery_backend}) may have failed, as when descriptors or inotify instances run "
            "out (ulimit -n, fs.inotify.max_user_instances); what Dynamo logged before this line says so"
        )
    return f"FATAL: Dynamo ended its runtime, which nobody asked for: {cause}\n"


async def wait_for_etcd(planes: Planes) -> None:
    """Return when etcd takes connections; at once if discovery is another.

    Raises:
        PlaneUnreached: it did not for two minutes; names the variable.
    """
    if planes.discovery_backend != "etcd":
        return
    end, told = time.monotonic() + WAIT_SECONDS, False
    while True:
        reason = await asyncio.to_thread(why_unreached, "--discovery-backend=etcd", os.environ)
        if reason is None:
            return
        if time.monotonic() >= end:
            raise PlaneUnreached(reason)
        if not told:
            told = True
            sys.stderr.write(f"{reason}; tried again for {WAIT_SECONDS:.0f} s\n")
            sys.stderr.flush()
        await asyncio.sleep(AGAIN_SECONDS)
