"""One worker that prefills and generates."""

from __future__ import annotations

from wavepp_worker.serve import Graph, Service

from graphs.services import FRONTEND, WORKER_COMMON

agg_wavepp = Graph(
    name="agg_wavepp",
    services=(
        FRONTEND,
        Service(
            name="Worker",
            module="wavepp_worker.dynamo.agg",
            arguments="wavepp_worker.dynamo.args:AggArgs",
            defaults={"pp": 2},
            common=WORKER_COMMON,
            needs_model=True,
        ),
    ),
)
