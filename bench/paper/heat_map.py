"""The figure of tiles: every cell and policy, by its share of the bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.common.cells import Cell
from bench.paper.views import K3, PP4, TITLES, Results


def share_of_bound(results: Results) -> Figure | None:
    """A tile per cell and policy: per cent of the bound."""
    stacks = [[model for model in models if results.of_model(model)] for models in (PP4, (K3,))]
    stacks = [models for models in stacks if models]
    if not stacks:
        return None
    # Rows of tiles, and the room of a title and the policies' names above each map.
    above = 4
    heights = [sum(len(results.of_model(model)) + above for model in models) for models in stacks]
    width = 1.15 + 0.4 * len(results.policies)
    figure = Figure(figsize=(width * len(stacks), 0.17 * max(heights) + 0.3))
    figure.suptitle("Share of the bound, %", x=0.01, ha="left", y=0.995, va="top")
    top, tile = 1 - 0.2 / figure.get_figheight(), 0.17 / figure.get_figheight()
    for column, models in enumerate(stacks):
        upper = top
        for model in models:
            cells = results.of_model(model)
            height = tile * len(cells)
            upper -= tile * above
            left = (width * column + 1.1) / figure.get_figwidth()
            axes = figure.add_axes(
                (left, upper - height, 0.4 * len(results.policies) / figure.get_figwidth(), height)
            )
            _heat_map(axes, results, cells)
            axes.set_title(TITLES[model], x=-0.4, pad=10)
            upper -= height
    return figure


def _heat_map(axes: Axes, results: Results, cells: Sequence[Cell]) -> None:
    shares = [
        [
            row.throughput / row.bound if (row := results.row(cell, p)) else float("nan")
            for p in results.policies
        ]
        for cell in cells
    ]
    image = axes.imshow(shares, cmap="cividis", vmin=0.6, vmax=1.0, aspect="auto")
    colours = image.to_rgba(np.array(shares))
    for y, line in enumerate(shares):
        for x, share in enumerate(line):
            if share == share:
                red, green, blue, _ = colours[y][x]
                dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
                text = f"{share * 100:.1f}"
                axes.text(
                    x, y, text, ha="center", va="center", fontsize=6, color="white" if dark else "black"
                )
    axes.set_yticks(
        range(len(cells)), [f"{cell.family}  c={cell.concurrency}" for cell in cells], fontsize=6.5
    )
    axes.set_xticks(range(len(results.policies)), results.policies, rotation=30, ha="left", fontsize=6.5)
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
