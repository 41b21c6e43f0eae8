"""Figures of bars: the ablation, and idle time by cause."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common.cells import Cell
from bench.common.figure_style import BOUND, CAUSE_COLOURS, COLOURS, HALO, OTHER, grid, thousands, token_axis
from bench.common.policies import RUNGS
from bench.paper.rows import CellRow
from bench.paper.rungs import ablation_cells
from bench.paper.views import CAUSES, TITLES, Results, mean_idle


def ablation(results: Results) -> Figure | None:
    """Throughput of R1 to R4, with the paper's figures as marks."""
    cells = ablation_cells(results)
    if not cells:
        return None
    figure, [panels] = grid(
        1, len(cells), "Ablation, Kimi K3: prompt tokens/s; diamonds are the paper's, on B300"
    )
    for axes, (cell, reported) in zip(panels, cells, strict=True):
        bound = results.bound(cell)
        axes.axhline(bound, color=BOUND, linewidth=0.8)
        axes.text(-0.45, bound * 1.01, "bound", color=BOUND, fontsize=7, va="bottom")
        for at, (rung, policy) in enumerate(RUNGS.items()):
            if row := results.row(cell, policy):
                axes.bar(at, row.throughput, width=0.62, color=COLOURS[policy])
                label = thousands(row.throughput)
                axes.text(at, bound * 0.02, label, ha="center", path_effects=HALO)
            if value := reported.throughput.get(rung):
                axes.plot(at, value, marker="D", color=OTHER, markerfacecolor="white", markersize=5)
        axes.set_xticks(range(len(RUNGS)), [f"{rung}\n{policy}" for rung, policy in RUNGS.items()])
        axes.set_xlim(-0.5, len(RUNGS) - 0.5)
        axes.set_title(f"{cell.family}, c={cell.concurrency}")
        token_axis(axes)
    return figure


def idle(results: Results, model: str) -> Figure | None:
    """Idle shares by cause, mean over the stages: a panel per family, a bar per policy."""
    families = list(dict.fromkeys(cell.family for cell in results.of_model(model)))
    cells = [cell for family in families if (cell := _most_measured(results, model, family))]
    if not cells:
        return None
    columns = min(3, len(cells))
    title = f"{TITLES[model]}: idle time of a stage by cause, % (mean over the stages)"
    figure, axes = grid(-(-len(cells) // columns), columns, title, panel=(2.9, 1.5))
    panels = [panel for row in axes for panel in row]
    for panel in panels[len(cells) :]:
        panel.set_axis_off()
    for panel, cell in zip(panels, cells, strict=False):
        rows = {policy: row for policy, row in results.of(cell).items() if row.idle}
        _idle_panel(panel, rows)
        panel.set_title(f"{cell.family}, c={cell.concurrency}")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=len(CAUSES), frameon=False, handlelength=1)
    return figure


def _idle_panel(axes: Axes, rows: dict[str, CellRow]) -> None:
    left = [0.0] * len(rows)
    means = [mean for row in rows.values() if (mean := mean_idle(row))]
    for cause, name in CAUSES.items():
        shares = [getattr(mean, cause) * 100 for mean in means]
        axes.barh(list(rows), shares, left=left, height=0.7, color=CAUSE_COLOURS[cause], label=name)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    for at, total in enumerate(left):
        axes.text(total, at, f" {total:.1f}", va="center", fontsize=7, color="#444444")
    axes.set_xlim(0, max(5.0, 1.15 * max(left)))
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)


def _most_measured(results: Results, model: str, family: str) -> Cell | None:
    """The family's cell with idle times of the most policies; of several the one nearest c = 16."""
    counted = [
        (-sum(bool(row.idle) for row in results.of(cell).values()), abs(cell.concurrency - 16), at, cell)
        for at, cell in enumerate(results.of_family(model, family))
    ]
    most, *_, cell = min(counted)
    return cell if most else None
