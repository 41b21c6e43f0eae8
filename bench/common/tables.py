"""Tables that keep every digit, on any terminal and in any file."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NOTHING = "[dim]-"
"""The cell of a table for what was not measured."""


def plain_table(
    title: str, caption: str = "", *, texts: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Table:
    """A table without lines between its cells; columns of texts come before columns of numbers."""
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD
    )
    for name in texts:
        table.add_column(name, justify="left", no_wrap=True)
    add_numbers(table, *numbers)
    return table


def add_numbers(table: Table, *names: str) -> None:
    """Add columns of numbers."""
    for name in names:
        table.add_column(name, justify="right")


def print_table(console: Console, table: Table) -> None:
    """Print a table with every digit of its numbers.

    A file or a pipe has no width to keep to. On a terminal the widest columns are folded between words, and the
    table is wider than the terminal where that does not suffice.
    """
    before, wide = console.width, console.options.update(width=1000)
    least = []
    for column in table.columns:
        cells = [Text.from_markup(str(each)) for each in (column.header, *column.cells)]
        sizes = [Measurement.get(console, wide, cell) for cell in cells]
        column.width = max(size.maximum for size in sizes)
        least.append(column.width if column.no_wrap else max(size.minimum for size in sizes))

    def whole() -> int:
        return Measurement.get(console, wide, table).maximum

    while console.is_terminal and whole() > before:
        room = [(column.width or 0) - width for column, width in zip(table.columns, least, strict=True)]
        if not any(room):
            break
        widest = table.columns[room.index(max(room))]
        widest.width = (widest.width or 0) - 1
    console.width = whole()
    console.print(table)
    console.width = before
