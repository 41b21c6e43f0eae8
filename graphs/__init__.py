"""The graphs that ``dynamo serve`` starts: ``graphs:disagg_wavepp`` and ``graphs:agg_wavepp``."""

from __future__ import annotations

# Relative, as an installed package has this folder as wavepp_worker.graphs.
from .agg_wavepp import agg_wavepp
from .disagg_wavepp import disagg_wavepp

__all__ = ["agg_wavepp", "disagg_wavepp"]
