"""The graphs that ``dynamo serve`` starts, such as ``graphs:disagg_wavepp``."""

from __future__ import annotations

# Relative, as an installed package has this folder as wavepp_worker.graphs.
from .agg_wavepp import agg_wavepp
from .disagg_wavepp import disagg_wavepp
from .disagg_wavepp_queue import disagg_wavepp_queue

__all__ = ["agg_wavepp", "disagg_wavepp", "disagg_wavepp_queue"]
