"""Prefill by two pipeline-parallel replicas, generation by a decode worker."""

from __future__ import annotations

from dataclasses import replace

from wavepp_worker.serve import DECODE_WORKER, FRONTEND, PREFILL_WORKER, Graph

disagg_wavepp = Graph(
    name="disagg_wavepp",
    services=(FRONTEND, DECODE_WORKER, replace(PREFILL_WORKER, replicas=2)),
    about=__doc__,
)
