"""Cost models of the paper's systems, fitted to its tables; ``python -m bench.paper.cost_models`` prints the fit.

A stage takes ``a + b*n + c*sum(context attended)`` seconds for a wave. In a full pipeline an uncached token
costs ``a/M + b + c*x``, with ``M`` tokens in a wave and ``x`` the mean context its tokens attend to, so every
cell of the paper gives one number: prompt tokens over throughput over uncached tokens is at least that.

1. ``a/M + b`` and ``c`` are as large as the tables allow: they maximise the sum over the cold families of
   modelled over measured time, where no family may take longer than the paper's best system measured at its
   best concurrency. So the bound that follows is below no measured cell, and a system that is not at its bound
   (as the paper's on reuse) shows as such.
2. ``a`` comes from the rows with one request alone, where a pipeline is mostly filling: least squares of the
   completion time of half-budget waves (the budget that the paper's planner takes for little work) against
   WavePP's. GLM 5.2 and MiniMax M2.7 have no such rows; they get the ``a`` of Kimi K3 in proportion to the
   parameters of a stage, as every wave of a mixture of experts reads all of them (Kimi K3: 175 GB in 4 bits,
   22 ms at 8 TB/s).

What no table tells is assumed: parameter counts, 16-bit activations, links of the machines' generation, and KV
of the published attention shapes. Layers are virtual: their number only has to divide by the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from wavepp_worker.model.timed.timed_model import Link, TimedModel, write_timed_model
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.common.bounds import bound
from bench.common.cells import CELLS, Cell, Shape
from bench.common.systems import (
    MODELS_DIR,
    SYSTEMS,
    VOCABULARY,
    WAVE_TOKENS,
    hop_seconds,
    stage_cost,
)

_HOP = Link(latency=30e-6, bandwidth=700e9)


def pipeline_seconds(waves: Sequence[float], stages: int, hop: float) -> float:
    """When waves of these stage times, launched one behind the other, have left the last stage."""
    free = [0.0] * stages
    for seconds in waves:
        arrived = 0.0
        for stage in range(stages):
            free[stage] = max(free[stage], arrived) + seconds
            arrived = free[stage] + hop
    return free[-1]


def fit_saturated(cells: Sequence[Cell]) -> tuple[float, float]:
    """``(a/M + b, c)``: see step 1 of the module's description."""
    # Context and seconds per uncached token of each family, by the best system at the best concurrency.
    best: dict[str, tuple[float, float]] = {}
    for cell in cells:
        seconds = cell.tokens / max(cell.measured.values()) / cell.uncached
        context = cell.context / cell.uncached
        best[cell.family] = min(best.get(cell.family, (context, seconds)), (context, seconds))
    cold = {best[cell.family] for cell in cells if cell.cold}
    limits = [(1.0, x, y) for x, y in best.values()] + [(-1.0, 0.0, 0.0), (0.0, -1.0, 0.0)]
    corners = []
    for (p, q, r), (s, t, u) in combinations(limits, 2):
        if determinant := p * t - s * q:
            base, slope = (r * t - u * q) / determinant, (p * u - s * r) / determinant
            if all(k * base + x * slope <= y * (1 + 1e-9) + 1e-15 for k, x, y in limits):
                corners.append((sum((base + slope * x) / y for x, y in cold), base, slope))
    _, base, slope = max(corners)
    return base, slope


def predicted_alone(cost: WaveCost, shape: Shape, stages: int, hop: float) -> float:
    """Completion seconds of one request in waves of half the budget."""
    starts = range(shape.cached, shape.tokens, WAVE_TOKENS // 2)
    return pipeline_seconds(
        [cost.a + cost.work(start, min(WAVE_TOKENS // 2, shape.tokens - start)) for start in starts],
        stages,
        hop,
    )


def fit_wave_seconds(cells: Sequence[Cell], base: float, c: float, stages: int, hop: float) -> float:
    """``a``: see step 2 of the module's description. In steps of 0.1 ms."""
    rows = [cell for cell in cells if cell.concurrency == 1]

    def error(a: float) -> float:
        cost = WaveCost(a, base - a / WAVE_TOKENS, c)
        times = [
            (predicted_alone(cost, cell.shapes[0], stages, hop), cell.tokens / cell.measured["WavePP"])
            for cell in rows
        ]
        return sum((predicted / measured - 1) ** 2 for predicted, measured in times)

    return min((step * 1e-4 for step in range(500)), key=error)


def fit() -> dict[str, TimedModel]:
    """The timed models of all systems, from the paper's tables."""
    cells = {name: [cell for cell in CELLS if cell.model == name] for name in SYSTEMS}
    hops = {name: _HOP.seconds(WAVE_TOKENS / 2 * system.activation_bytes) for name, system in SYSTEMS.items()}
    saturated = {name: fit_saturated(cells[name]) for name in SYSTEMS}
    kimi = SYSTEMS["kimi-k3-pp8"]
    of_kimi = fit_wave_seconds(
        cells["kimi-k3-pp8"], *saturated["kimi-k3-pp8"], kimi.stages, hops["kimi-k3-pp8"]
    )
    models = {}
    for name, system in SYSTEMS.items():
        base, c = saturated[name]
        a = of_kimi * (system.parameters / system.stages) / (kimi.parameters / kimi.stages)
        per_layer = system.stages / system.layers
        host = Link(latency=20e-6, bandwidth=system.host_bandwidth)
        models[name] = TimedModel(
            name=system.name,
            layers=system.layers,
            vocabulary=VOCABULARY,
            context_length=1 << 19,
            wave_seconds=a * per_layer,
            token_seconds=(base - a / WAVE_TOKENS) * per_layer,
            context_seconds=c * per_layer,
            activation_bytes=system.activation_bytes,
            kv_bytes=system.kv_bytes,
            hop=_HOP,
            to_host=host,
            from_host=host,
        )
    return models


def report(models: dict[str, TimedModel]) -> Table:
    """Every cell's bound beside what was measured, and completion times alone."""
    table = Table(
        "cell",
        "WavePP tok/s",
        "best PP tok/s",
        "bound tok/s",
        "WavePP/bound",
        "best/bound",
        "alone: model/paper s",
    )
    for name, model in models.items():
        stages = SYSTEMS[name].stages
        cost, hop = stage_cost(model, stages), hop_seconds(model)
        table.add_section()
        table.add_row(
            f"[bold]{model.name}",
            f"a {cost.a * 1e3:.1f} ms",
            f"b {cost.b * 1e6:.2f} us",
            f"c {cost.c * 1e12:.1f} ps",
        )
        for cell in CELLS:
            if cell.model != name:
                continue
            limit, best = bound(cost, cell, stages, hop), max(cell.measured.values())
            wavepp = cell.measured["WavePP"]
            times = ""
            if cell.concurrency == 1:
                shape = cell.shapes[0]
                times = f"{predicted_alone(cost, shape, stages, hop):.2f}/{shape.tokens / wavepp:.2f}"
            table.add_row(
                f"{cell.family} c={cell.concurrency}",
                f"{wavepp:,.0f}",
                f"{best:,.0f}",
                f"{limit:,.0f}",
                f"{wavepp / limit:.1%}",
                f"[red]{best / limit:.1%}" if best > limit * 1.0005 else f"{best / limit:.1%}",
                times,
            )
    return table


def main(write: Annotated[bool, typer.Option(help="Write bench/models/*/timed.json.")] = False) -> None:
    """Fit the cost models to the paper's tables and print how well they agree."""
    models = fit()
    Console(width=130).print(report(models))
    if write:
        for name, model in models.items():
            write_timed_model(MODELS_DIR / name, model)


if __name__ == "__main__":
    typer.run(main)
