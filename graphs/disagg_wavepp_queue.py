"""Long prompts prefilled by workers that take them from a NATS queue, short ones and all answers by decode workers."""

from __future__ import annotations

from dataclasses import replace

from wavepp_worker.serve import DECODE_WORKER, FRONTEND, PREFILL_WORKER, WORKER, Graph

disagg_wavepp_queue = Graph(
    name="disagg_wavepp_queue",
    services=(
        FRONTEND,
        replace(WORKER, name=DECODE_WORKER.name, defaults={"pp": 1, "remote_prefill": "nats"}),
        replace(PREFILL_WORKER, replicas=2, defaults={"pp": 2, "intake": "nats-alone"}),
    ),
    about=__doc__,
)
