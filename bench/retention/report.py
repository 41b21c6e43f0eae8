"""How well reusable prefixes survive as requests arrive (paper, section 5.7): table and figure beside the paper's.

``python -m bench.retention.report FILE.json`` prints a kept sweep. A good hit reuses at least 80 % of the prefix
that a request could reuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.common.kept import Kept, origins, read_kept
from bench.common.policies import MPU, in_table_order
from bench.common.tables import NOTHING, plain_table, print_table

GOOD = 0.8
"""Share of the expected prefix that a good hit reuses at least."""

PAPER = {
    0.5: (0.82, 1.00),
    0.625: (0.76, 0.92),
    0.75: (0.73, 0.91),
    0.875: (0.80, 0.88),
    1.0: (0.83, 0.97),
}
"""By arrival rate in requests/s: the good hits of TRT-LLM TP8/EP8 and of WavePP, on Kimi K3."""


class RetentionPoint(Kept, frozen=True, kw_only=True):
    """One policy at one arrival rate.

    Attributes:
        rate: requests per device second that arrive.
        good_hits: share of the requests with a prefix to reuse that reused ``GOOD`` of it.
        p50: completion in device seconds; ``p95`` alike.
        throughput: prompt tokens per device second.
    """

    rate: float
    policy: str
    good_hits: float
    p50: float
    p95: float
    throughput: float


def retention_table(points: Sequence[RetentionPoint]) -> Table:
    """Good hits by arrival rate, the paper's and those of every policy."""
    policies = in_table_order(point.policy for point in points)
    table = plain_table(
        "Prefix retention: good hits",
        f"a good hit reuses at least {GOOD:.0%} of its prefix; last: {MPU} above the paper's WavePP, in points\n"
        f"measured: {origins(points)}",
        numbers=["req/s", "paper:\nTRT-LLM TP8", "paper:\nWavePP", *policies, f"{MPU} -\nWavePP"],
    )
    measured = {(point.rate, point.policy): point for point in points}
    for rate in sorted({*PAPER, *(point.rate for point in points)}):
        paper = PAPER.get(rate)
        values = [f"{share:.0%}" for share in paper] if paper else [NOTHING] * 2
        for policy in policies:
            point = measured.get((rate, policy))
            values.append(f"{point.good_hits:.1%}" if point else NOTHING)
        ours = measured.get((rate, MPU))
        ahead = f"{(ours.good_hits - paper[1]) * 100:+.0f}" if ours and paper else NOTHING
        table.add_row(f"{rate:.3f}", *values, ahead)
    return table


def times_table(points: Sequence[RetentionPoint]) -> Table:
    """Completion times and throughput by arrival rate."""
    policies = in_table_order(point.policy for point in points)
    title = "Prefix retention: completion p50 / p95 in seconds, prompt tokens/s"
    table = plain_table(title, numbers=["req/s", *policies])
    measured = {(point.rate, point.policy): point for point in points}
    for rate in sorted({point.rate for point in points}):
        values = []
        for policy in policies:
            point = measured.get((rate, policy))
            values.append(f"{point.p50:.1f} / {point.p95:.1f}  {point.throughput:,.0f}" if point else NOTHING)
        table.add_row(f"{rate:.3f}", *values)
    return table


def write_retention_figure(points: Sequence[RetentionPoint], file: Path) -> Path:
    """Good hits and p95 by arrival rate.

    Raises:
        ValueError: there are no points.
    """
    # Tables do without matplotlib.
    from bench.common.figure_style import COLOURS, DASHES, OTHER, grid, label_ends, save
    from bench.common.figure_style import PAPER as SHADES

    if not points:
        raise ValueError("there is nothing to draw: no retention point was measured")
    figure, [[left, right]] = grid(1, 2, "Prefix retention by arrival rate", panel=(3.4, 2.3))
    ends = []
    for at, name in enumerate(("TRT-LLM", "WavePP")):
        shares = [shares[at] * 100 for shares in PAPER.values()]
        left.plot(list(PAPER), shares, color=SHADES[name], linestyle=DASHES[name], linewidth=1.0)
        ends.append((shares[-1], f"{name}{' TP8' if at == 0 else ''}, paper", SHADES[name]))
    times = []
    for policy in in_table_order(point.policy for point in points):
        colour = COLOURS.get(policy, OTHER)
        mine = sorted((point for point in points if point.policy == policy), key=lambda point: point.rate)
        rates = [point.rate for point in mine]
        left.plot(rates, [point.good_hits * 100 for point in mine], color=colour, marker="o")
        right.plot(rates, [point.p95 for point in mine], color=colour, marker="o")
        ends.append((mine[-1].good_hits * 100, policy, colour))
        times.append((mine[-1].p95, policy, colour))
    lowest = min(share * 100 for share in (*(p.good_hits for p in points), *(s[0] for s in PAPER.values())))
    left.set_ylim(0 if lowest < 60 else 60, 103)
    right.set_ylim(0, 1.1 * max(point.p95 for point in points))
    left.set_title("good hits, %")
    right.set_title("p95 completion, seconds")
    for axes, labels in ((left, ends), (right, times)):
        axes.set_xlabel("requests/s")
        label_ends(axes, labels, 1.7)
    return save(figure, file)


def main(
    file: Annotated[Path, typer.Argument(help="A kept sweep.", exists=True, dir_okay=False)],
    figure: Annotated[Path | None, typer.Option(help="Write a PNG figure.")] = None,
) -> None:
    """Print a kept retention sweep beside the paper's."""
    points = read_kept(file, RetentionPoint)
    for table in (retention_table(points), times_table(points)):
        print_table(Console(), table)
    if figure is not None:
        typer.echo(write_retention_figure(points, figure))


if __name__ == "__main__":
    typer.run(main)
