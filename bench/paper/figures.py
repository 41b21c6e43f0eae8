"""PNG figures of measured rows beside the paper's figures; figures without rows are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common.cells import Cell
from bench.common.figure_style import (
    BOUND,
    COLOURS,
    DASHES,
    HALO,
    PAPER,
    grid,
    label_ends,
    limits,
    log_seconds,
    save,
    token_axis,
)
from bench.common.policies import LOCKSTEP, MPU
from bench.paper.bars import ablation, idle
from bench.paper.heat_map import share_of_bound
from bench.paper.rows import CellRow
from bench.paper.views import K3, PP4, TITLES, Results

COLD = ("short cold", "long cold", "mixed")
REUSE = ("short reuse", "long reuse", "4K suffix")
K3_COLD = ("cold 65.5K", "cold 131K", "cold 262K")
K3_REUSE = ("reuse 131K", "reuse 262K")
LINES = (LOCKSTEP, MPU)
"""The policies drawn as lines; the others are in the tables, the heat map and the bars."""
End = tuple[float, str, str]
"""The last value of a line, its name and its colour."""
PANEL = 1.5
"""About how high the axes of a panel are, in inches."""


def write_figures(rows: Sequence[CellRow], directory: Path) -> list[Path]:
    """Write every figure that has rows into ``directory``; returns the files written."""
    results = Results(rows)
    makers: dict[str, Callable[[Results], Figure | None]] = {
        "pp4-cold": pp4_cold,
        "pp4-reuse": pp4_reuse,
        "k3-cold": k3_cold,
        "k3-reuse": k3_reuse,
        "k3-mixed": k3_mixed,
        "ablation": ablation,
        "share-of-bound": share_of_bound,
    }
    for model in TITLES:
        makers[f"idle-{model}"] = partial(idle, model=model)
    figures = ((name, make(results)) for name, make in makers.items())
    return [save(figure, directory / f"{name}.png") for name, figure in figures if figure is not None]


def pp4_cold(results: Results) -> Figure | None:
    """Throughput against concurrency, cold and mixed traffic, a row per model."""
    return _throughputs(results, "Cold and mixed traffic: prompt tokens/s by concurrency", PP4, COLD)


def pp4_reuse(results: Results) -> Figure | None:
    """Throughput against concurrency, traffic that reuses, a row per model."""
    return _throughputs(results, "Reuse: prompt tokens/s by concurrency, cached tokens included", PP4, REUSE)


def k3_cold(results: Results) -> Figure | None:
    """Throughput against concurrency and against p50, cold traffic."""
    return _operating(results, "Kimi K3, cold", K3_COLD)


def k3_reuse(results: Results) -> Figure | None:
    """Throughput against concurrency and against p50, 90 % reuse."""
    return _operating(results, "Kimi K3, 90 % reuse", K3_REUSE)


def k3_mixed(results: Results) -> Figure | None:
    """Throughput and p50 against concurrency, mixed traffic."""
    cells = results.of_family(K3, "mixed")
    if not cells:
        return None
    figure, [[left, right]] = grid(1, 2, "Kimi K3, 75 % warm 131K and 25 % cold 262K prompts")
    _throughput_panel(left, results, cells, last=True)
    left.set_title("prompt tokens/s")
    _lines(right, results, cells, lambda row: row.p50, lambda cell: (cell.wavepp_times or (0.0, 0.0))[0])
    right.set_title("p50 completion, seconds")
    for axes in (left, right):
        axes.set_xlabel("concurrency")
    return figure


def _throughputs(
    results: Results, title: str, models: Sequence[str], families: Sequence[str]
) -> Figure | None:
    models = [model for model in models if any(results.of_family(model, family) for family in families)]
    families = [family for family in families if any(results.of_family(model, family) for model in models)]
    if not models:
        return None
    figure, axes = grid(len(models), len(families), title)
    for row, model in enumerate(models):
        for column, family in enumerate(families):
            panel, cells = axes[row][column], results.of_family(model, family)
            if not cells:
                panel.set_axis_off()
                continue
            _throughput_panel(panel, results, cells, last=column == len(families) - 1)
            panel.set_title(f"{TITLES[model]}: {family}")
            if row == len(models) - 1:
                panel.set_xlabel("concurrency")
    return figure


def _operating(results: Results, title: str, families: Sequence[str]) -> Figure | None:
    families = [family for family in families if results.of_family(K3, family)]
    if not families:
        return None
    figure, axes = grid(2, len(families), f"{title}: prompt tokens/s by concurrency, by p50")
    for column, family in enumerate(families):
        cells, last = results.of_family(K3, family), column == len(families) - 1
        top, bottom = axes[0][column], axes[1][column]
        _throughput_panel(top, results, cells, last=last)
        top.set_title(family)
        top.set_xlabel("concurrency")
        _operating_panel(bottom, results, cells, last=last)
        bottom.set_xlabel("p50 completion, seconds")
    return figure


def _throughput_panel(axes: Axes, results: Results, cells: Sequence[Cell], *, last: bool) -> None:
    """Our lines, the paper's dashed and the bound thin, over the concurrencies of ``cells``."""
    places = range(len(cells))
    ends = []
    bounds = [results.bound(cell) for cell in cells]
    axes.plot(places, bounds, color=BOUND, linewidth=0.8)
    ends.append((bounds[-1], "bound", BOUND))
    shown = list(bounds)
    for system in cells[0].measured:
        values = [cell.measured[system] for cell in cells]
        axes.plot(places, values, color=PAPER[system], linestyle=DASHES[system], linewidth=1.0)
        ends.append((values[-1], f"{system}, paper", PAPER[system]))
        shown += values
    shown += _our_lines(axes, results, cells, lambda row: row.throughput, ends)
    axes.set_xticks(places, [str(cell.concurrency) for cell in cells])
    limits(axes, shown)
    token_axis(axes)
    if last:
        label_ends(axes, ends, PANEL)


def _lines(
    axes: Axes,
    results: Results,
    cells: Sequence[Cell],
    ours: Callable[[CellRow], float],
    of_paper: Callable[[Cell], float],
) -> None:
    places = range(len(cells))
    values = [of_paper(cell) for cell in cells]
    axes.plot(places, values, color=PAPER["WavePP"], linestyle=DASHES["WavePP"], linewidth=1.0)
    ends, shown = [(values[-1], "WavePP, paper", PAPER["WavePP"])], list(values)
    shown += _our_lines(axes, results, cells, ours, ends)
    axes.set_xticks(places, [str(cell.concurrency) for cell in cells])
    limits(axes, shown)
    label_ends(axes, ends, PANEL)


def _our_lines(
    axes: Axes, results: Results, cells: Sequence[Cell], value: Callable[[CellRow], float], ends: list[End]
) -> list[float]:
    """Draw a line per policy of ``LINES``, add its end to ``ends``; returns the values drawn."""
    shown: list[float] = []
    for policy in LINES:
        points = [(at, value(row)) for at, cell in enumerate(cells) if (row := results.row(cell, policy))]
        if points:
            axes.plot(*zip(*points, strict=True), color=COLOURS[policy], marker="o")
            ends.append((points[-1][1], policy, COLOURS[policy]))
            shown += [y for _, y in points]
    return shown


def _operating_panel(axes: Axes, results: Results, cells: Sequence[Cell], *, last: bool) -> None:
    paper = [
        (cell.wavepp_times[0], cell.measured["WavePP"], cell.concurrency)
        for cell in cells
        if cell.wavepp_times
    ]
    lines = [("WavePP, paper", PAPER["WavePP"], paper)]
    for policy in LINES:
        found = [(row.p50, row.throughput, row.concurrency) for c in cells if (row := results.row(c, policy))]
        lines.append((policy, COLOURS[policy], found))
    ends = []
    for name, colour, points in lines:
        if not points:
            continue
        dashed = name not in LINES
        xs, ys, _ = zip(*points, strict=True)
        style = DASHES["WavePP"] if dashed else "solid"
        axes.plot(xs, ys, color=colour, linestyle=style, linewidth=1.0 if dashed else 1.6, marker="o")
        ends.append((ys[-1], name, colour))
    for x, y, c in lines[-1][2] or lines[0][2]:
        axes.annotate(
            f"c={c}", (x, y), (0, 5), textcoords="offset points", fontsize=6, ha="center", path_effects=HALO
        )
    log_seconds(axes)
    limits(axes, [y for _, _, points in lines for _, y, _ in points])
    token_axis(axes)
    if last:
        label_ends(axes, ends, PANEL)
