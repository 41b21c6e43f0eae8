"""Table and figure of what ``bench.admission`` measured, beside the paper's figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from rich.table import Table

Samples = defaultdict[str, list[float]]

INDEX, WALKS = "hint index", "two walks"
PAPER = {
    "look-up: two walks (the first)": ("64.4 ms", ""),
    "look-up: hint index": ("24 µs", ""),
    "discovery: hint index": ("", "2.35 ms"),
}
"""What the paper reports (section 4.3) for 200K-token prompts at concurrency 64: median, p99."""


def show(samples: Samples, rounds: dict[str, float], title: str) -> Table:
    table = Table("step", "median", "p99", "samples", "paper median", "paper p99", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in samples.items():
        table.add_row(
            name,
            duration(statistics.median(values)),
            duration(percentile(values, 0.99)) if len(values) >= 20 else "",
            str(len(values)),
            *PAPER.get(name, ("", "")),
        )
    for name, value in rounds.items():
        table.add_row(f"rounds per admitted request: {name}", f"{value:.2f}", "", "", "", "")
    return table


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def duration(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def draw_figure(path: Path, samples: Samples, title: str) -> None:
    """Median (bar) and p99 (line) of the steps that both ways have, on a logarithmic scale."""
    from matplotlib.figure import Figure

    pairs = [
        ("one look-up", f"look-up: {INDEX}", "look-up: two walks (the first)"),
        ("all that wait", f"look-up of all that wait: {INDEX}", f"look-up of all that wait: {WALKS}"),
        ("discovery", f"discovery: {INDEX}", f"discovery: {WALKS}"),
        (
            "discovery between\nadmissions",
            *(f"discovery between admissions: {way}" for way in (INDEX, WALKS)),
        ),
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number, (label, colour) in enumerate([(INDEX, "tab:blue"), (WALKS, "tab:orange")]):
        values = [[1000 * value for value in samples[names[number]]] for _, *names in pairs]
        places = [at + 0.38 * (number - 0.5) for at in range(len(pairs))]
        medians = [statistics.median(group) for group in values]
        axes.bar(places, medians, 0.36, label=label, color=colour)
        axes.vlines(places, medians, [percentile(group, 0.99) for group in values], color="black")
    axes.set_xticks(range(len(pairs)), [label for label, *_ in pairs])
    axes.set_yscale("log")
    axes.set_ylabel("ms: median, line to p99")
    axes.set_title(title, fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
