"""A small timed model."""

from __future__ import annotations

from typing import Any

import msgspec
from wavepp_worker.model.timed.timed_model import Link, TimedModel

VOCABULARY = 1000


def timed_model(**changes: Any) -> TimedModel:
    """8 layers; a wave of n tokens takes 8 * (0.01 + 0.001 n) s, a hop 0.5 s, a block 0.16 s to copy."""
    model = TimedModel(
        name="test",
        layers=8,
        vocabulary=VOCABULARY,
        context_length=100_000,
        wave_seconds=0.01,
        token_seconds=0.001,
        context_seconds=0.0,
        activation_bytes=0,
        kv_bytes=10,
        hop=Link(latency=0.5, bandwidth=1.0),
        to_host=Link(latency=0.0, bandwidth=8000.0),
        from_host=Link(latency=0.0, bandwidth=8000.0),
    )
    return msgspec.structs.replace(model, **changes)
