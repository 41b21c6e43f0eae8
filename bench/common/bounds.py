"""What no system with a cost model can exceed in a cell of the paper."""

from __future__ import annotations

from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.common.cells import Cell, Shape
from bench.common.systems import SYSTEMS, WAVE_TOKENS, hop_seconds, read_system_model, stage_cost


def alone(cost: WaveCost, shape: Shape, stages: int, hop: float) -> float:
    """Seconds of one request on an idle pipeline, cut into the best number of waves of equal time."""
    work = cost.b * shape.uncached + cost.c * shape.context
    least = -(-shape.uncached // WAVE_TOKENS)
    turns = ((k + stages - 1) * (cost.a + work / k) for k in range(least, 513))
    return min(turns) + (stages - 1) * hop


def bound(cost: WaveCost, cell: Cell, stages: int, hop: float) -> float:
    """Prompt tokens/s that nothing can exceed: full waves without a gap, or every client's request alone."""
    busy = (cost.a / WAVE_TOKENS + cost.b) * cell.uncached + cost.c * cell.context
    latency = sum(alone(cost, shape, stages, hop) for shape in cell.shapes)
    return cell.tokens / max(busy, latency / cell.concurrency)


def cell_bound(cell: Cell) -> float:
    """Prompt tokens/s that no system with the cell's cost model can exceed in it."""
    model, stages = read_system_model(cell.model), SYSTEMS[cell.model].stages
    return bound(stage_cost(model, stages), cell, stages, hop_seconds(model))
