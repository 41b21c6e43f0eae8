"""Whether measured rows reach what the project promises, and what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.common.cells import CELLS, Cell
from bench.common.policies import GREEDY, MPU, POLICIES
from bench.paper.rows import CellRow
from bench.paper.views import Results, mean_idle

LOST = 0.0005
"""Share of a prompt that is not reused because a prefix ends within a block of 64 tokens."""
ABOVE = 1.0005
"""How far above its bound a cell may be before the bound is wrong: less than a wave in a cell's thousands."""
EQUAL = 1.001
"""Completion times that differ by less are the same: host code does not take the same time in two runs."""
PLANNING = 200e-6
"""Seconds that planning a wave may take."""


@dataclass(frozen=True)
class Finding:
    """One promise.

    Attributes:
        checked: cells (or rows) for which the rows say whether it is kept.
        misses: a cell's name and its figures, the worst first.
        missed: how many of those checked do not keep it.
        unchecked: why cells were left out, if any were.
    """

    promise: str
    checked: int
    misses: tuple[tuple[str, str], ...]
    missed: int
    unchecked: str = ""


def verdict(results: Results) -> list[Finding]:
    """Every promise, kept or not, from the cells that were run."""
    return [
        _bound(results, f"{MPU}: at least 95 % of the bound where c >= 16", 0.95, lambda c: c >= 16),
        _bound(results, f"{MPU}: at least 90 % of the bound where c = 8", 0.90, lambda c: c == 8),
        _best(results),
        _p95(results),
        _reuse(results),
        _above(results),
        _planning(results),
    ]


def not_run(results: Results) -> list[str]:
    """What is missing of the paper's cells under our policies, a line per policy."""
    lines = []
    for policy in POLICIES:
        parts = []
        for model in dict.fromkeys(cell.model for cell in CELLS):
            cells = [cell for cell in CELLS if cell.model == model]
            lacking = [cell for cell in cells if results.row(cell, policy) is None]
            if len(lacking) == len(cells):
                parts.append(f"{model} (all {len(cells)})")
            elif lacking:
                parts.append(f"{model} ({len(lacking)} of {len(cells)}: {_brief(lacking)})")
        if not any(row.policy == policy for row in results.rows):
            lines.append(f"{policy}: all {len(CELLS)} cells")
        elif parts:
            lines.append(f"{policy}: {'; '.join(parts)}")
    return lines


def _brief(cells: Sequence[Cell]) -> str:
    families: dict[str, list[str]] = {}
    for cell in cells:
        families.setdefault(cell.family, []).append(str(cell.concurrency))
    return ", ".join(f"{family} c={'/'.join(each)}" for family, each in families.items())


def _finding(
    promise: str, checked: int, misses: list[tuple[float, str, str]], unchecked: str = ""
) -> Finding:
    """``misses`` come with what to sort by, the smallest first."""
    ordered = tuple((name, text) for _, name, text in sorted(misses))
    return Finding(promise, checked, ordered, len(ordered), unchecked)


def _bound(results: Results, promise: str, least: float, applies: Callable[[int], bool]) -> Finding:
    cells = [cell for cell in CELLS if applies(cell.concurrency)]
    pairs = [(cell, row) for cell in cells if (row := results.row(cell, MPU))]
    misses = []
    for cell, row in pairs:
        share = row.throughput / row.bound
        if share < least:
            text = f"{share:.2%}: {row.throughput:,.0f} of {row.bound:,.0f} tok/s"
            misses.append((share, cell.name, text + _lost_to(row)))
    missing = len(cells) - len(pairs)
    return _finding(promise, len(pairs), misses, f"{missing} cells not run" if missing else "")


def _lost_to(row: CellRow) -> str:
    idle = mean_idle(row)
    if idle is None:
        return ""
    rest = 1 - idle.total - row.throughput / row.bound
    text = f"; stages idle {idle.total:.1%}"
    return text if rest < 0.005 else f"{text}, {rest:.1%} of their time is work beyond the bound's"


def _pairs(results: Results) -> Iterator[tuple[Cell, CellRow]]:
    return ((cell, row) for cell in results.cells if (row := results.row(cell, MPU)))


def _best(results: Results) -> Finding:
    misses, checked, partly = [], 0, 0
    for cell, row in _pairs(results):
        rows = results.of(cell)
        if len(rows) == 1:
            continue
        checked += 1
        partly += any(policy not in rows for policy in POLICIES)
        best = rows[results.best(cell)]
        share = row.throughput / best.throughput
        if share < 0.99:
            text = (
                f"{share - 1:+.2%} against {best.policy}: {row.throughput:,.0f}, {best.throughput:,.0f} tok/s"
            )
            misses.append((share, cell.name, text))
    unchecked = _unchecked(len(CELLS) - checked, f"{MPU} beside another policy")
    if partly:
        unchecked = ", ".join(filter(None, (unchecked, f"{partly} cells lack some policy")))
    return _finding(f"{MPU}: within 1 % of our best policy", checked, misses, unchecked)


def _p95(results: Results) -> Finding:
    misses, checked = [], 0
    for cell, row in _pairs(results):
        greedy = results.row(cell, GREEDY)
        if greedy is None:
            continue
        checked += 1
        if row.p95 > greedy.p95 * EQUAL:
            text = f"{row.p95 / greedy.p95 - 1:+.2%}: {row.p95:.2f} s, {GREEDY} {greedy.p95:.2f} s"
            misses.append((greedy.p95 / row.p95, cell.name, text))
    return _finding(
        f"{MPU}: p95 no worse than with greedy planning ({GREEDY})",
        checked,
        misses,
        _unchecked(len(CELLS) - checked, f"{MPU} and {GREEDY}"),
    )


def _unchecked(cells: int, lacking: str) -> str:
    return f"{cells} cells not run with {lacking}" if cells else ""


def _reuse(results: Results) -> Finding:
    rows = [row for row in results.rows if row.reusable > 0]
    lost: dict[tuple[str, str, str], list[CellRow]] = {}
    for row in rows:
        if row.reused < row.reusable - LOST:
            lost.setdefault((row.model, row.family, row.policy), []).append(row)
    misses = []
    for (model, family, policy), group in lost.items():
        worst = min(group, key=lambda row: row.reused - row.reusable)
        where = "/".join(str(row.concurrency) for row in group)
        text = f"reused {worst.reused:.2%} of {worst.reusable:.2%}"
        if len(group) > 1:
            text += f" at c={worst.concurrency}, the least"
        misses.append((worst.reused - worst.reusable, f"{model} {family} c={where} {policy}", text))
    finding = _finding("every policy: reused all that it could", len(rows), misses)
    return replace(finding, missed=sum(len(group) for group in lost.values()))


def _above(results: Results) -> Finding:
    misses = [
        (row.bound / row.throughput, _name(row), f"{row.throughput:,.0f} of {row.bound:,.0f} tok/s")
        for row in results.rows
        if row.throughput > row.bound * ABOVE
    ]
    for cell in results.cells:
        bounds = [row.bound for row in results.of(cell).values()]
        if max(bounds) > min(bounds) * ABOVE:
            text = f"its policies ran with bounds from {min(bounds):,.0f} to {max(bounds):,.0f} tok/s"
            misses.append((0.0, cell.name, text))
    return _finding("every policy: at most the bound, the same for all", len(results.rows), misses)


def _planning(results: Results) -> Finding:
    rows = [row for _, row in _pairs(results) if row.planning > 0]
    misses = [
        (-row.planning, _name(row), f"median {row.planning * 1e6:.0f} us")
        for row in rows
        if row.planning >= PLANNING
    ]
    return _finding(f"{MPU}: a wave is planned in under {PLANNING * 1e6:.0f} us", len(rows), misses)


def _name(row: CellRow) -> str:
    return f"{row.model} {row.family} c={row.concurrency} {row.policy}"
