"""Prefill by pipeline-parallel WavePP replicas, generation by a decode worker."""

from __future__ import annotations

from wavepp_worker.former_names import FORMER_NAMES
from wavepp_worker.serve import Graph, Service

from graphs.services import FRONTEND, WORKER_COMMON

disagg_wavepp = Graph(
    name="disagg_wavepp",
    services=(
        FRONTEND,
        Service(
            name="DecodeWorker",
            module="wavepp_worker.dynamo.decode",
            arguments="wavepp_worker.dynamo.args:DecodeArgs",
            common=WORKER_COMMON,
            former=FORMER_NAMES,
            needs_model=True,
        ),
        Service(
            name="PrefillWorker",
            module="wavepp_worker.dynamo.prefill",
            arguments="wavepp_worker.dynamo.args:PrefillArgs",
            defaults={"pp": 2},
            common=WORKER_COMMON,
            former=FORMER_NAMES,
            replicas=2,
            needs_model=True,
        ),
    ),
)
