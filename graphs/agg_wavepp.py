"""One worker that prefills and generates."""

from __future__ import annotations

from wavepp_worker.former_names import FORMER_NAMES
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
            former={
                **FORMER_NAMES,
                "decode_block": "decode_block_size",
                "decode_max_batch": "decode_max_num_seqs",
            },
            needs_model=True,
        ),
    ),
)
