"""The graphs that ``dynamo serve`` starts: ``graphs:disagg_wavepp`` and ``graphs:agg_wavepp``."""

from __future__ import annotations

from graphs.agg_wavepp import agg_wavepp
from graphs.disagg_wavepp import disagg_wavepp

__all__ = ["agg_wavepp", "disagg_wavepp"]
