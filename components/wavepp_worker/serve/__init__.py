"""``dynamo serve GRAPH``: graph definitions become processes that are started, watched and stopped together."""

from __future__ import annotations

from wavepp_worker.serve.graph import PLANES, Graph, Service

__all__ = ["PLANES", "Graph", "Service"]
