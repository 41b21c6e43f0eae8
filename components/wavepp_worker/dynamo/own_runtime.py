"""A runtime of Dynamo's beside the one that its own worker has, and does not give away."""

from __future__ import annotations

import asyncio
from typing import Any

from dynamo._core import DistributedRuntime

from wavepp_worker.dynamo.runtime_args import RuntimeArgs


async def own_runtime(runtime: RuntimeArgs) -> Any:
    """One on the planes of this worker, with an id of its own in discovery.

    Raises:
        Exception: it cannot be made; Dynamo has no class of its own for what can go wrong here.
    """
    options = runtime.options
    return await asyncio.to_thread(
        DistributedRuntime,
        asyncio.get_running_loop(),
        options.discovery_backend,
        options.request_plane,
        event_plane=options.event_plane,
    )
