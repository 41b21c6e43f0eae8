"""The tables of a report, in the paper's form; each takes any subset of cells and policies."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bench.paper.ablation import RUNGS, ablation_cells, steps
from bench.paper.cells import Cell
from bench.paper.rows import Row
from bench.paper.views import CAUSES, GREEDY, LOCKSTEP, MODELS, MPU, Results, change, mean_idle, others

NOTHING = "[dim]-"


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


def _table(title: str, caption: str, *texts: str) -> Table:
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD
    )
    for text in texts:
        table.add_column(text, justify="left", no_wrap=True)
    return table


def _cell_table(title: str, caption: str) -> Table:
    table = _table(title, caption, "family")
    table.add_column("c", justify="right")
    return table


def _columns(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right")


def _add_cells(table: Table, rows: Iterator[tuple[Cell, list[str]]]) -> Table:
    family = ""
    for cell, values in rows:
        if cell.family != family:
            table.add_section()
        table.add_row(cell.family if cell.family != family else "", str(cell.concurrency), *values)
        family = cell.family
    return table


def _compared(row: Row | None, base: Row | None, field: str) -> str:
    return change(getattr(row, field), getattr(base, field)) if row and base else NOTHING


def throughput_table(results: Results, model: str) -> Table:
    """Prompt tokens/s of the paper's systems and of our policies, with the share of the bound."""
    cells = results.of_model(model)
    policies = results.policies_of(model)
    table = _cell_table(
        f"{MODELS[model]}: prompt tokens/s, and % of the bound",
        "* the best of ours; paper: WavePP against the best other pipeline",
    )
    systems = list(cells[0].measured)
    _columns(table, *(f"paper:\n{system}" for system in systems), "bound", *policies)
    _columns(table, f"{MPU}\n/{LOCKSTEP}", "paper:\nWavePP/\nother")

    def rows() -> Iterator[tuple[Cell, list[str]]]:
        for cell in cells:
            mine, best = results.of(cell), results.best(cell)
            values = [f"{cell.measured[system]:,.0f}" for system in systems]
            values.append(f"{results.bound(cell):,.0f}")
            for policy in policies:
                row = mine.get(policy)
                values.append(_throughput(row, policy == best) if row else NOTHING)
            values.append(_compared(mine.get(MPU), mine.get(LOCKSTEP), "throughput"))
            yield cell, [*values, change(cell.measured["WavePP"], others(cell))]

    return _add_cells(table, rows())


def _throughput(row: Row, best: bool) -> str:
    text = f"{row.throughput:,.0f}{'*' if best else ''} {row.throughput / row.bound:.1%}"
    return f"[bold green]{text}" if best else text


def completion_table(results: Results, model: str) -> Table:
    """Completion times, and how p95 compares with greedy planning and with lockstep."""
    cells = results.of_model(model)
    policies = results.policies_of(model)
    table = _cell_table(
        f"{MODELS[model]}: completion p50 / p95, seconds", "p95 in % against another policy's"
    )
    of_paper = any(cell.wavepp_times for cell in cells)
    _columns(table, *(["paper:\nWavePP"] if of_paper else []), *policies)
    _columns(table, f"{MPU} p95\n/{GREEDY}", f"{MPU} p95\n/{LOCKSTEP}")

    def rows() -> Iterator[tuple[Cell, list[str]]]:
        for cell in cells:
            mine = results.of(cell)
            values = []
            if of_paper:
                values.append("{:.1f} / {:.1f}".format(*cell.wavepp_times) if cell.wavepp_times else NOTHING)
            for policy in policies:
                row = mine.get(policy)
                values.append(f"{row.p50:.1f} / {row.p95:.1f}" if row else NOTHING)
            for base in (GREEDY, LOCKSTEP):
                text = _compared(mine.get(MPU), mine.get(base), "p95")
                values.append(f"[red]{text}" if text.startswith("+") else text)
            yield cell, values

    return _add_cells(table, rows())


def computed_table(results: Results, model: str) -> Table:
    """Uncached tokens/s of the cells that reuse."""
    cells = [cell for cell in results.of_model(model) if not cell.cold]
    policies = results.policies_of(model)
    table = _cell_table(
        f"{MODELS[model]}: computed tokens/s, and % of the prompt tokens reused",
        "prompt tokens/s without the reused ones; cold cells compute them all",
    )
    _columns(table, "reusable", "bound", *policies)

    def rows() -> Iterator[tuple[Cell, list[str]]]:
        for cell in cells:
            mine, share = results.of(cell), cell.uncached / cell.tokens
            values = [f"{1 - share:.1%}", f"{results.bound(cell) * share:,.0f}"]
            for policy in policies:
                row = mine.get(policy)
                values.append(f"{row.computed:,.0f} {row.reused:.1%}" if row else NOTHING)
            yield cell, values

    return _add_cells(table, rows())


def bubbles_table(results: Results, model: str) -> Table:
    """Idle shares of a stage by cause, the mean over the stages."""
    table = _cell_table(
        f"{MODELS[model]}: idle % of a stage, mean over the stages",
        f"in this order: {', '.join(CAUSES.values())}",
    )
    policies = results.policies_of(model)
    for policy in policies:
        table.add_column(policy, justify="right", no_wrap=True)

    def rows() -> Iterator[tuple[Cell, list[str]]]:
        for cell in results.of_model(model):
            mine = results.of(cell)
            yield cell, [_bubbles(mine.get(policy)) for policy in policies]

    return _add_cells(table, rows())


def _bubbles(row: Row | None) -> str:
    idle = mean_idle(row) if row else None
    if idle is None:
        return NOTHING
    values = (f"{getattr(idle, cause) * 100:.1f}" for cause in CAUSES)
    return " ".join(f"{'.' if value == '0.0' else value:>4}" for value in values)


def stage_table(results: Results, cell: Cell) -> Table:
    """Idle shares of every stage of one cell."""
    table = _table(f"{cell.name}: idle % of every stage", "", "policy", "stage")
    _columns(table, *CAUSES.values(), "all")
    for policy, row in results.of(cell).items():
        table.add_section()
        for stage, idle in enumerate(row.idle):
            causes = (getattr(idle, cause) for cause in CAUSES)
            values = [f"{share * 100:.2f}" for share in (*causes, idle.total)]
            table.add_row(policy if stage == 0 else "", str(stage), *values)
        if not row.idle:
            table.add_row(policy, "not measured")
    return table


def ablation_table(results: Results) -> Table:
    """Gains of R1 to R4 beside the paper's, and the idle time that each rung added or removed."""
    table = _table(
        "Ablation, Kimi K3: change of throughput from rung to rung, and where it comes from",
        "paper: on B300, so its gains compare and its tokens/s do not; gain = stages busier x faster while busy;\n"
        "idle: percentage points of a stage's time that a rung has more than the one before",
        "cell",
        "rung",
    )
    _columns(table, "tok/s", "gain", "paper:\ntok/s", "paper:\ngain", "p50 s", "paper:\np50 s", "busier")
    _columns(table, "faster", *(f"idle:\n{name}" for name in CAUSES.values()))
    for cell, reported in ablation_cells(results):
        table.add_section()
        for step in steps(results, cell):
            rung, row, idle = step.rung, step.row, step.idle
            table.add_row(
                f"{cell.family} c={cell.concurrency}" if rung == "R1" else "",
                f"{rung} {RUNGS[rung]}",
                f"{row.throughput:,.0f}" if row else NOTHING,
                _percent(step.gain),
                f"{reported.throughput[rung]:,.0f}" if rung in reported.throughput else NOTHING,
                _percent(reported.gain.get(rung)),
                f"{row.p50:.2f}" if row else NOTHING,
                f"{reported.p50[rung]:.2f}" if rung in reported.p50 else NOTHING,
                _percent(step.busier),
                _percent(step.faster),
                *(f"{getattr(idle, cause) * 100:+.1f}" if idle else NOTHING for cause in CAUSES),
            )
    return table


def _percent(value: float | None) -> str:
    return NOTHING if value is None else change(1 + value, 1)
