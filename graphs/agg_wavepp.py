"""One worker that prefills and generates."""

from __future__ import annotations

from wavepp_worker.serve import FRONTEND, WORKER, Graph

agg_wavepp = Graph(name="agg_wavepp", services=(FRONTEND, WORKER), about=__doc__)
