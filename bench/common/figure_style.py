"""How the figures look: colours that everyone can tell apart, few lines, labels at the lines' ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

# Okabe and Ito's colours.
COLOURS = {
    "lockstep": "#cc79a7",
    "wave": "#56b4e9",
    "lease": "#0072b2",
    "throttle": "#e69f00",
    "mpu-paper": "#999999",
    "mpu": "#d55e00",
}
PAPER = {"WavePP": "#111111", "TRT-LLM": "#666666", "SGLang": "#666666", "vLLM": "#666666"}
DASHES = {
    "WavePP": (0, (4, 2)),
    "TRT-LLM": (0, (1, 1.5)),
    "SGLang": (0, (1, 1.5)),
    "vLLM": (0, (4, 1.5, 1, 1.5)),
}
CAUSE_COLOURS = {"no_work": "#d9d9d9", "admission": "#d55e00", "upstream": "#56b4e9", "local": "#f0e442"}
BOUND = "#009e73"
OTHER = "#000000"
HALO = [withStroke(linewidth=2, foreground="white")]
"""Behind text that crosses lines or bars."""

mpl.rcParams.update(
    {
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#888888",
        "axes.linewidth": 0.7,
        "xtick.color": "#444444",
        "ytick.color": "#444444",
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "lines.linewidth": 1.6,
        "lines.markersize": 3.5,
        "figure.titlesize": 10,
        "figure.titleweight": "bold",
    }
)


def grid(
    rows: int, columns: int, title: str, *, panel: tuple[float, float] = (2.9, 2.1)
) -> tuple[Figure, list]:
    """A figure of equal panels (inches each), and its axes row by row."""
    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows + 0.4), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def save(figure: Figure, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=160, facecolor="white")
    return file


def log_seconds(axes: Axes) -> None:
    """A logarithmic x axis with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())


def thousands(value: float) -> str:
    """A number of tokens for a label."""
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.0f}k" if value >= 1e5 else f"{value / 1e3:.1f}k"


def limits(axes: Axes, values: Sequence[float]) -> None:
    """From zero where the values differ much; otherwise near enough to tell them apart."""
    low, high = min(values), max(values)
    pad = max(0.12 * (high - low), 0.03 * high)
    axes.set_ylim(0 if low < 0.6 * high else low - pad, high + pad)


def token_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(lambda value, _: "0" if value == 0 else _tick(value))


def _tick(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k"


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], height: float) -> None:
    """Write names (value, name, colour) right of an axes of ``height`` inches, spread so that none overlap.

    The axes' limits must be set already.
    """
    low, high = axes.get_ylim()
    gap = 9.0 / (height * 72)
    places: list[float] = []
    ordered = sorted(ends)
    for value, _, _ in ordered:
        place = (value - low) / (high - low)
        places.append(max(place, places[-1] + gap) if places else place)
    # Those pushed beyond the top come down again, and push those below them.
    limit = 1.0
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    for place, (_, name, colour) in zip(places, ordered, strict=True):
        axes.text(1.03, place, name, color=colour, transform=axes.transAxes, va="center", fontsize=7)
