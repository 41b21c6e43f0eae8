"""Measured rows of the paper's cells, made up."""

from __future__ import annotations

import msgspec

from bench.common.cells import cell_named
from bench.paper.rows import CellRow, Idle


def row(name: str, policy: str, share: float = 0.97, **changes: object) -> CellRow:
    """A row of the cell ``name`` whose bound is 100,000 tokens/s, at ``share`` of it."""
    of = cell_named(name)
    reusable = 1 - of.uncached / of.tokens
    made = CellRow(
        model=of.model,
        policy=policy,
        family=of.family,
        concurrency=of.concurrency,
        requests=64,
        clock="virtual",
        speed=1.0,
        throughput=share * 1e5,
        bound=1e5,
        computed=share * 1e5 * (1 - reusable),
        p50=10.0,
        p95=11.0,
        reused=reusable,
        reusable=reusable,
        waves=400,
        rounds=90,
        planning=50e-6,
        idle=(Idle(no_work=0.01, upstream=0.02), Idle(no_work=0.01, upstream=0.0)),
    )
    return msgspec.structs.replace(made, **changes)
