"""The tables of a report, in the paper's form; each takes any subset of cells and policies."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from bench.common.cells import Cell
from bench.common.policies import GREEDY, LOCKSTEP, MPU, RUNGS
from bench.common.tables import NOTHING, add_numbers, plain_table
from bench.paper.rows import CellRow
from bench.paper.rungs import ablation_cells, steps
from bench.paper.views import CAUSES, TITLES, Results, change, mean_idle, others


def _cell_table(title: str, caption: str) -> Table:
    return plain_table(title, caption, texts=["family"], numbers=["c"])


def _add_cells(table: Table, rows: Iterator[tuple[Cell, list[str]]]) -> Table:
    family = ""
    for cell, values in rows:
        if cell.family != family:
            table.add_section()
        table.add_row(cell.family if cell.family != family else "", str(cell.concurrency), *values)
        family = cell.family
    return table


def _compared(row: CellRow | None, base: CellRow | None, field: str) -> str:
    return change(getattr(row, field), getattr(base, field)) if row and base else NOTHING


def throughput_table(results: Results, model: str) -> Table:
    """Prompt tokens/s of the paper's systems and of our policies, with the share of the bound."""
    cells = results.of_model(model)
    policies = results.policies_of(model)
    table = _cell_table(
        f"{TITLES[model]}: prompt tokens/s, and % of the bound",
        "* the best of ours; paper: WavePP against the best other pipeline",
    )
    systems = list(cells[0].measured)
    add_numbers(table, *(f"paper:\n{system}" for system in systems), "bound", *policies)
    add_numbers(table, f"{MPU}\n/{LOCKSTEP}", "paper:\nWavePP/\nother")

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


def _throughput(row: CellRow, best: bool) -> str:
    text = f"{row.throughput:,.0f}{'*' if best else ''} {row.throughput / row.bound:.1%}"
    return f"[bold green]{text}" if best else text


def completion_table(results: Results, model: str) -> Table:
    """Completion times, and how p95 compares with greedy planning and with lockstep."""
    cells = results.of_model(model)
    policies = results.policies_of(model)
    table = _cell_table(
        f"{TITLES[model]}: completion p50 / p95, seconds", "p95 in % against another policy's"
    )
    of_paper = any(cell.wavepp_times for cell in cells)
    add_numbers(table, *(["paper:\nWavePP"] if of_paper else []), *policies)
    add_numbers(table, f"{MPU} p95\n/{GREEDY}", f"{MPU} p95\n/{LOCKSTEP}")

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
        f"{TITLES[model]}: computed tokens/s, and % of the prompt tokens reused",
        "prompt tokens/s without the reused ones; cold cells compute them all",
    )
    add_numbers(table, "reusable", "bound", *policies)

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
        f"{TITLES[model]}: idle % of a stage, mean over the stages",
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


def _bubbles(row: CellRow | None) -> str:
    idle = mean_idle(row) if row else None
    if idle is None:
        return NOTHING
    values = (f"{getattr(idle, cause) * 100:.1f}" for cause in CAUSES)
    return " ".join(f"{'.' if value == '0.0' else value:>4}" for value in values)


def stage_table(results: Results, cell: Cell) -> Table:
    """Idle shares of every stage of one cell."""
    title = f"{cell.name}: idle % of every stage"
    table = plain_table(title, texts=["policy", "stage"], numbers=[*CAUSES.values(), "all"])
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
    table = plain_table(
        "Ablation, Kimi K3: change of throughput from rung to rung, and where it comes from",
        "paper: on B300, so its gains compare and its tokens/s do not; gain = stages busier x faster while busy;\n"
        "idle: percentage points of a stage's time that a rung has more than the one before",
        texts=["cell", "rung"],
    )
    add_numbers(table, "tok/s", "gain", "paper:\ntok/s", "paper:\ngain", "p50 s", "paper:\np50 s", "busier")
    add_numbers(table, "faster", *(f"idle:\n{name}" for name in CAUSES.values()))
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
