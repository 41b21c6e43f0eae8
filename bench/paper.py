"""The paper's cells (section 5) on timed stages: production processes, virtual devices.

``python -m bench.paper [--model NAME] [--only TEXT] [--policy NAME] [--speed N]`` boots one engine for every
model and policy and sends it each cell's traffic from ``c`` clients, each of which sends its next prompt when
the last one is answered. Tokens, hashes, trees, rounds, escrow and processes are real; a device takes the time of
its cost model (``bench.cost_models``) divided by ``--speed``, which makes the host's share that much larger than
it would be. Figures are in the device's seconds.

Cold cells come first in a boot; a boot that begins with another cell is first filled with cold traffic. Prefixes
are sent before the clock starts. ``--out`` keeps every finished cell, and a run that finds it there does not
repeat it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.model.cost_model import read_timed_model
from wavepp_worker.runtime.messages import PrefillRequest, PrefillResult

from bench.cost_models import SYSTEMS, VOCABULARY, M, cell_bound, model_dir, stage_cost
from bench.paper_cells import CELLS, Cell

BLOCK = 64
PREFIXES = 4
"""Prefixes that the requests of a cell share in turns; the paper does not say how many it had."""

POLICIES: dict[str, dict[str, Any]] = {
    "lockstep": {"admission": "lockstep", "planner": "greedy"},
    "wave": {"admission": "wave", "ownership": "none", "planner": "greedy"},
    "lease": {"admission": "wave", "ownership": "lease", "planner": "greedy"},
    "throttle": {"admission": "wave", "ownership": "lease", "planner": "throttle"},
    "mpu-paper": {"admission": "wave", "ownership": "lease", "planner": "mpu-paper"},
    "mpu": {"admission": "wave", "ownership": "lease", "planner": "mpu"},
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measured cell; times in device seconds, throughput in prompt tokens per device second.

    Attributes:
        reused: share of the prompt tokens that were not computed.
        reusable: the same, had every prefix been kept.
    """

    model: str
    policy: str
    family: str
    concurrency: int
    requests: int
    speed: float
    throughput: float
    bound: float
    p50: float
    p95: float
    reused: float
    reusable: float
    waves: int


class Traffic:
    """Prompts as packed uint32 token ids, drawn anew from ``seed``; prefixes are drawn once per length."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        self._prefixes: dict[int, list[bytes]] = {}

    def tokens(self, count: int) -> bytes:
        return self._draw.integers(0, VOCABULARY, count, dtype=np.uint32).astype("<u4").tobytes()

    def prefixes(self, length: int) -> list[bytes]:
        if length not in self._prefixes:
            self._prefixes[length] = [self.tokens(length) for _ in range(PREFIXES)]
        return self._prefixes[length]

    def prompts(self, cell: Cell, count: int) -> Iterator[bytes]:
        """``count`` prompts of a cell's shapes in turn."""
        for index in range(count):
            shape = cell.shapes[index % len(cell.shapes)]
            prefix = (
                self.prefixes(shape.cached)[index // len(cell.shapes) % PREFIXES] if shape.cached else b""
            )
            yield prefix + self.tokens(shape.uncached)


def send(engine: PrefillEngine, prompts: Iterable[bytes], concurrency: int, name: str) -> list[PrefillResult]:
    """Send every prompt, ``concurrency`` at a time, and wait for all answers.

    Raises:
        WaveppError: a prompt failed.
    """
    slots = threading.Semaphore(concurrency)
    futures = []
    for index, tokens in enumerate(prompts):
        slots.acquire()
        future = engine.submit(PrefillRequest(request_id=f"{name}-{index}", tokens=tokens))
        future.add_done_callback(lambda _: slots.release())
        futures.append(future)
    return [future.result() for future in futures]


def measure(
    engine: PrefillEngine, traffic: Traffic, policy: str, cell: Cell, per_client: int, speed: float
) -> Row:
    """Seed a cell's prefixes, then time its requests."""
    for shape in set(cell.shapes):
        if shape.cached:
            send(engine, traffic.prefixes(shape.cached), 1, f"{time.monotonic_ns()}-seed")
    count = max(16, per_client * cell.concurrency)
    prompts = list(traffic.prompts(cell, count))
    waves = engine.stats().waves
    begun = time.perf_counter()
    results = send(engine, prompts, cell.concurrency, f"{time.monotonic_ns()}-{policy}")
    seconds = (time.perf_counter() - begun) * speed
    time.sleep(0.6)
    completion = sorted(result.timings.total * speed for result in results)
    tokens = sum(result.prompt_tokens for result in results)
    return Row(
        model=cell.model,
        policy=policy,
        family=cell.family,
        concurrency=cell.concurrency,
        requests=count,
        speed=speed,
        throughput=tokens / seconds,
        bound=cell_bound(cell),
        p50=completion[count // 2],
        p95=completion[-(-95 * count // 100) - 1],
        reused=sum(result.reused_tokens for result in results) / tokens,
        reusable=1 - cell.uncached / cell.tokens,
        waves=engine.stats().waves - waves,
    )


def boot_config(model: str, policy: str, directory: Path, kv_tokens: int, speed: float) -> EngineConfig:
    """The engine of one model and policy."""
    system, switches = SYSTEMS[model], dict(POLICIES[policy])
    if switches["planner"] == "mpu":
        timed = read_timed_model(directory)
        cost = stage_cost(timed, system.stages)
        switches["chunk_cost"] = (cost.a / speed, cost.b / speed, cost.c / speed)
    elif switches["planner"] == "mpu-paper" and system.stages == 8:
        switches["planner"] = "two-budget"
    longest = max(shape.tokens for cell in CELLS if cell.model == model for shape in cell.shapes)
    return EngineConfig(
        model=directory,
        pp=system.stages,
        chunk=M,
        block=BLOCK,
        kv_tokens=kv_tokens,
        max_model_len=longest,
        max_batch=128,
        **switches,
    )


def report(rows: Sequence[Row]) -> Table:
    """Every cell's policies beside the paper's figures."""
    policies = [policy for policy in POLICIES if any(row.policy == policy for row in rows)]
    table = Table(
        "cell", "paper", "WavePP/bound", *policies, title="prompt tokens/s, share of the bound, p50/p95 s"
    )
    for cell in CELLS:
        mine = {row.policy: row for row in rows if (row.model, row.family, row.concurrency) == _key(cell)}
        if not mine:
            continue
        bound = next(iter(mine.values())).bound
        measured = " ".join(f"{name} {value:,.0f}" for name, value in cell.measured.items())
        columns = []
        for policy in policies:
            row = mine.get(policy)
            lost = "" if row is None or row.reused > row.reusable - 0.01 else f" reused {row.reused:.0%}"
            columns.append(
                f"{row.throughput:,.0f} {row.throughput / bound:.1%} {row.p50:.1f}/{row.p95:.1f}{lost}"
                if row
                else ""
            )
        table.add_row(cell.name, measured, f"{cell.measured['WavePP'] / bound:.1%}", *columns)
    return table


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.model, cell.family, cell.concurrency


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(SYSTEMS)}; default: all.")
    ] = None,
    only: Annotated[str, typer.Option(help="Cells whose name contains this.")] = "",
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: all.")
    ] = None,
    speed: Annotated[
        float, typer.Option(help="How much faster than the paper's devices the virtual ones are.")
    ] = 10.0,
    requests_per_client: Annotated[
        int, typer.Option(help="Requests of a cell, per client; at least 16 in all.")
    ] = 4,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 6_000_000,
    out: Annotated[Path, typer.Option(help="Measured cells, JSON; those in it are not repeated.")] = Path(
        "paper.json"
    ),
) -> None:
    """Run the paper's cells on virtual devices and print them beside the paper's figures."""
    names, policies = model or list(SYSTEMS), policy or list(POLICIES)
    for chosen, known in ((names, SYSTEMS), (policies, POLICIES)):
        if unknown := [name for name in chosen if name not in known]:
            raise typer.BadParameter(f"{unknown[0]} is not one of {', '.join(known)}")
    rows = msgspec.json.decode(out.read_bytes(), type=list[Row]) if out.exists() else []
    done = {(row.policy, row.model, row.family, row.concurrency) for row in rows}
    wanted = [cell for cell in CELLS if cell.model in names and only in cell.name]
    # Cold cells first; the sort keeps the paper's order otherwise.
    todo = [
        (name, each, cells)
        for name in names
        for each in policies
        if (
            cells := sorted(
                (c for c in wanted if c.model == name and (each, *_key(c)) not in done),
                key=lambda c: not c.cold,
            )
        )
    ]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(width=200)
    with (
        tempfile.TemporaryDirectory() as directory,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        expected = sum(_expected(cell, requests_per_client) for _, _, cells in todo for cell in cells)
        task = progress.add_task("starting", total=expected)
        for name, each, cells in todo:
            config = boot_config(name, each, model_dir(name, speed, Path(directory)), kv_tokens, speed)
            traffic = Traffic()
            progress.update(task, description=f"{name} {each}: booting")
            with PrefillEngine(config) as engine:
                send(engine, [traffic.tokens(BLOCK)], 1, "first")
                if not cells[0].cold:
                    length = 2 * M
                    send(engine, (traffic.tokens(length) for _ in range(kv_tokens // length)), 32, "fill")
                for cell in cells:
                    progress.update(task, description=f"{each}: {cell.name}")
                    rows.append(measure(engine, traffic, each, cell, requests_per_client, speed))
                    out.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
                    progress.advance(task, _expected(cell, requests_per_client))
                engine.audit()
    console.print(report(rows))


def _expected(cell: Cell, per_client: int) -> float:
    """Device seconds a cell takes at least."""
    return max(16, per_client * cell.concurrency) * cell.tokens / len(cell.shapes) / cell_bound(cell)


if __name__ == "__main__":
    typer.run(main)
