"""``dynamo serve GRAPH``: processes of a graph, started, watched and stopped together."""

from __future__ import annotations

from wavepp_worker.serve.graph import PLANES, Graph, Service

__all__ = ["PLANES", "Graph", "Service"]
