"""What ``python -m bench.gpu`` measured, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from bench.common.origin import origin_now
from bench.common.tables import NOTHING, plain_table, print_table


@dataclass(frozen=True)
class Row:
    """One cell of one side.

    Attributes:
        side: ``P=2``; ``2 of P=1``, engines side by side; or ``transformers``.
        tokens_per_second: prompt tokens, reused ones included, over the time of all.
        utilisation: operations of what was computed, by the seconds and by the card's rate of matrix products.
        idle: seconds in which ranks computed nothing although there were requests, by cause, over all ranks; empty for
            transformers.
        failed: why there are no figures, such as a card without room; empty if there are.
    """

    shape: str
    cell: str
    side: str
    tokens_per_second: float
    utilisation: float
    reused: float
    p50: float
    p95: float
    idle: dict[str, float]
    failed: str = ""


def side_by_side(engines: int) -> str:
    """The side of so many engines of one rank each."""
    return f"{engines} of P=1"


def print_rows(rows: Sequence[Row], card: str, rate: float) -> None:
    """Print them as a table; ``rate``: operations a second of the card's dense matrix products."""
    table = plain_table(
        f"{card}, {rate / 1e12:.2f} TFLOP/s in dense bfloat16 matrix products, measured at {origin_now()}",
        "tok/s: prompt tokens, reused ones included; of as many: engines of one rank, side by side; MFU: operations "
        "computed, of those of matrix products in that time; idle: seconds without computing, of all ranks",
        texts=["model", "cell", "side"],
        numbers=["tok/s", "of P=1", "of as many", "MFU", "reused", "p50 s", "p95 s", "idle s, most for"],
    )
    for row in rows:
        if row.failed:
            table.add_row(row.shape, row.cell, row.side, *[NOTHING] * 7, row.failed)
            continue
        most = sorted(row.idle.items(), key=lambda each: -each[1])[:2]
        table.add_row(
            row.shape,
            row.cell,
            row.side,
            f"{row.tokens_per_second:,.0f}",
            _over(row, rows, "P=1"),
            _over(row, rows, side_by_side(int(row.side[2:]))) if row.side.startswith("P=") else NOTHING,
            f"{row.utilisation:.1%}",
            f"{row.reused:.1%}",
            f"{row.p50:.3f}",
            f"{row.p95:.3f}",
            f"{sum(row.idle.values()):.2f}: {', '.join(f'{cause} {seconds:.2f}' for cause, seconds in most)}"
            if row.idle
            else NOTHING,
        )
    print_table(Console(), table)


def _over(row: Row, rows: Sequence[Row], side: str) -> str:
    """A row's tokens per second over those of another side in the same cell."""
    wanted = (row.shape, row.cell, side, "")
    other = next((each for each in rows if (each.shape, each.cell, each.side, each.failed) == wanted), None)
    return NOTHING if other is None else f"{row.tokens_per_second / other.tokens_per_second:.2f}"
