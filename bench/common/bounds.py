"""What no system with a cost model can exceed in a cell of the paper."""

from __future__ import annotations

from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.common.cells import Cell, Shape
from bench.common.systems import SYSTEMS, WAVE_TOKENS, hop_seconds, read_system_model, stage_cost

MOST_WAVES = 512
"""Waves more than the fewest that work is cut into at most: finer cuts only cost, in every cell."""


def fewest_seconds(wave: float, work: float, least: int, stages: int, hop: float) -> float:
    """Seconds of ``work`` on an idle pipeline, cut into the best number of waves of equal time, ``least`` or more.

    Args:
        wave: seconds that each wave takes by itself.
        hop: seconds from a stage to the next.
    """
    turns = ((k + stages - 1) * (wave + work / k) for k in range(least, least + MOST_WAVES))
    return min(turns) + (stages - 1) * hop


def alone(cost: WaveCost, shape: Shape, stages: int, hop: float) -> float:
    """Seconds of one request on an idle pipeline, cut into the best number of waves of equal time."""
    work = cost.b * shape.uncached + cost.c * shape.context
    return fewest_seconds(cost.a, work, -(-shape.uncached // WAVE_TOKENS), stages, hop)


def bound(cost: WaveCost, cell: Cell, stages: int, hop: float) -> float:
    """Prompt tokens/s that nothing can exceed: full waves without a gap, or every client's request alone."""
    busy = (cost.a / WAVE_TOKENS + cost.b) * cell.uncached + cost.c * cell.context
    latency = sum(alone(cost, shape, stages, hop) for shape in cell.shapes)
    return cell.tokens / max(busy, latency / cell.concurrency)


def cell_bound(cell: Cell) -> float:
    """Prompt tokens/s that no system with the cell's cost model can exceed in it."""
    model, stages = read_system_model(cell.model), SYSTEMS[cell.model].stages
    return bound(stage_cost(model, stages), cell, stages, hop_seconds(model))
