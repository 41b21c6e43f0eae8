"""Prompts that share what nobody has computed yet: ``python -m bench.bursts``.

Cold bursts behind common prefixes, trees (a system prompt, documents, questions) and agents (each turn extends the
last), with and without reuse of blocks in the making. *Least* is the union of the distinct blocks; the bound is the
time that an idle pipeline needs for it in equal waves, and *forced* what it needs at least if every block is computed
once, is read in later waves only, and a turn begins after the last one's answer. Devices take the time of GLM 5.2's
cost model, cut into ``--stages``, on the virtual clock (``bench.virtual.replica``); each cell meets a fresh replica
whose planner has seen other traffic.

With ``--interval``, every rank has recurrent layers beside attention, which resume only from a snapshot (Kimi K3's cost
model). They take one every so many tokens, and where they are asked to.

``--real`` asks real ranks instead, with a small random Llama, smaller cells, and no bound. There, reuse in the making
cannot be switched off by itself: what it is compared with allocates at admission (``ownership=none``).

``--out`` keeps every finished cell, and a run that finds it there does not repeat it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from bench.bursts.measure import measure_real, measure_virtual
from bench.bursts.report import print_report
from bench.bursts.rows import BurstRow
from bench.bursts.traffic import REAL_CELLS, VIRTUAL_CELLS, BurstCell
from bench.common.kept import read_kept, with_origin, write_kept
from bench.common.origin import origin_now
from bench.common.small_model import VOCABULARY, small_model

Job = tuple[BurstCell, int, bool]
"""A cell, the stages, and whether blocks in the making are reused."""


def main(
    stages: Annotated[
        list[int] | None, typer.Option(help="Pipeline stages; default: 1, 4 and 8, or 1 and 2 with --real.")
    ] = None,
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
    real: Annotated[bool, typer.Option("--real", help="On real ranks, see above.")] = False,
    interval: Annotated[
        int, typer.Option(help="Tokens between snapshots of recurrent layers; 0: attention alone.")
    ] = 0,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 2_000_000,
    charge: Annotated[
        float, typer.Option(help="What the host's CPU time counts on virtual devices; 0 repeats exactly.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Measured cells, JSON; those in it are not repeated.")] = Path(
        "bursts.json"
    ),
) -> None:
    """Print computed tokens over the fewest possible, and times against the bound and without such reuse."""
    console = Console()
    rows, origin = read_kept(out, BurstRow), origin_now()
    clock, cells = ("real", REAL_CELLS) if real else ("virtual", VIRTUAL_CELLS)
    done = {row.key for row in rows}
    jobs = [
        (cell, count, making)
        for count in stages or ([1, 2] if real else [1, 4, 8])
        for making in (True, False)
        for cell in cells
        if only in cell.name and (cell.name, count, making, clock, interval) not in done
    ]
    measured = (
        _real(jobs, kv_tokens)
        if real
        else (measure_virtual(*job, kv_tokens, interval, charge) for job in jobs)
    )
    with Progress(console=Console(stderr=True)) as progress:
        for row in progress.track(measured, total=len(jobs), description="measuring"):
            rows.append(with_origin(row, origin))
            write_kept(out, rows)
    print_report(rows, console)


def _real(jobs: list[Job], kv_tokens: int) -> Iterator[BurstRow]:
    with tempfile.TemporaryDirectory() as directory:
        model = small_model(Path(directory))
        for count, making in dict.fromkeys(job[1:] for job in jobs):
            cells = [cell for cell, *rest in jobs if rest == [count, making]]
            yield from measure_real(cells, model, VOCABULARY, count, making, kv_tokens)


if __name__ == "__main__":
    typer.run(main)
