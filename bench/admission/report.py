"""Table and figure of what ``bench.admission`` measured, beside the paper's figures."""

from __future__ import annotations

import statistics
from pathlib import Path

from rich.table import Table

from bench.admission.samples import INDEX, WALKS, Samples
from bench.common.percentile import percentile
from bench.common.policies import LOCKSTEP, MPU
from bench.common.tables import plain_table

PAPER = {
    "look-up: two walks (the first)": ("64.4 ms", ""),
    "look-up: hint index": ("24 µs", ""),
    "discovery: hint index": ("", "2.35 ms"),
}
"""What the paper reports (section 4.3) for 200K-token prompts at concurrency 64: median, p99."""


def steps_table(samples: Samples, rounds: dict[str, float], title: str) -> Table:
    """Median and p99 of every step beside the paper's."""
    table = plain_table(
        title, texts=["step"], numbers=["median", "p99", "samples", "paper median", "paper p99"]
    )
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


def duration(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def draw_figure(path: Path, samples: Samples, title: str) -> None:
    """Median (bar) and p99 (line) of the steps that both ways have, on a logarithmic scale."""
    # Tables do without matplotlib.
    from bench.common.figure_style import COLOURS, grid, save

    pairs = [
        ("one look-up", f"look-up: {INDEX}", "look-up: two walks (the first)"),
        ("all that wait", f"look-up of all that wait: {INDEX}", f"look-up of all that wait: {WALKS}"),
        ("discovery", f"discovery: {INDEX}", f"discovery: {WALKS}"),
        (
            "discovery between\nadmissions",
            *(f"discovery between admissions: {way}" for way in (INDEX, WALKS)),
        ),
    ]
    figure, [[axes]] = grid(1, 1, title, panel=(8, 4))
    for number, (label, colour) in enumerate([(INDEX, COLOURS[MPU]), (WALKS, COLOURS[LOCKSTEP])]):
        values = [[1000 * value for value in samples[names[number]]] for _, *names in pairs]
        places = [at + 0.38 * (number - 0.5) for at in range(len(pairs))]
        medians = [statistics.median(group) for group in values]
        axes.bar(places, medians, 0.36, label=label, color=colour)
        axes.vlines(places, medians, [percentile(group, 0.99) for group in values], color="black")
    axes.set_xticks(range(len(pairs)), [label for label, *_ in pairs])
    axes.set_yscale("log")
    axes.set_ylabel("ms: median, line to p99")
    axes.legend()
    save(figure, path)
