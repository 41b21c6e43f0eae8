"""``dynamo serve GRAPH``: processes of a graph, started, watched and stopped together."""

from __future__ import annotations

from wavepp_worker.serve.graph import PLANES, Graph, Service
from wavepp_worker.serve.services import DECODE_WORKER, FRONTEND, PREFILL_WORKER, WORKER, WORKER_COMMON

__all__ = [
    "DECODE_WORKER",
    "FRONTEND",
    "PLANES",
    "PREFILL_WORKER",
    "WORKER",
    "WORKER_COMMON",
    "Graph",
    "Service",
]
