"""One boot of the paper's evaluation: an engine, or a replica on the virtual clock, and a list of cells."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from wavepp_worker import PrefillEngine

from bench.common.boot import boot_config
from bench.common.bounds import cell_bound
from bench.common.cells import Cell, enough_requests
from bench.common.closed_loop import closed_loop, send_all
from bench.common.percentile import p95
from bench.common.systems import BLOCK, write_model_dir
from bench.paper.rows import CellRow, Idle
from bench.paper.traffic import CellTraffic
from bench.virtual.replica import Replica


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Cold cells first, as in the paper, so that reuse meets a full cache."""
    return sorted(cells, key=lambda cell: not cell.cold)


def virtual_boot(
    model: str,
    policy: str,
    cells: Sequence[Cell],
    kv_tokens: int,
    round_delay: float = 0.0,
    requests: int | None = None,
    times: int = 1,
) -> Iterator[CellRow]:
    """Measure cells one after the other on the virtual clock.

    Each gets ``requests``, or ``times`` as many as ``enough_requests`` says.
    """
    traffic = CellTraffic()
    with tempfile.TemporaryDirectory() as directory:
        timed_model = write_model_dir(model, 1.0, Path(directory))
        config = boot_config(model, policy, timed_model, kv_tokens, round_delay)
        replica = Replica(config)
    if not cells[0].cold:
        replica.closed_loop(traffic.filling(kv_tokens), 32)
    for cell in cells:
        replica.closed_loop(traffic.seeds(cell), 1)
        begun = replica.events.now
        count = requests or times * enough_requests(cell, config.pp)
        served = replica.closed_loop(traffic.prompts(cell, count), cell.concurrency)
        seconds = replica.events.now - begun
        yield _row(
            cell,
            policy,
            clock="virtual",
            speed=1.0,
            seconds=seconds,
            completion=[each.completion for each in served],
            reused=sum(each.reused_tokens for each in served),
            waves=replica.waves,
            rounds=replica.rounds,
            planning=replica.median_planning,
            idle=tuple(Idle(**rank.idle_shares(seconds)) for rank in replica.ranks),
        )
    replica.audit()


def real_boot(
    model: str, policy: str, cells: Sequence[Cell], kv_tokens: int, speed: float, per_client: int
) -> Iterator[CellRow]:
    """Measure cells one after the other on real processes, with devices ``speed`` times faster."""
    traffic = CellTraffic()
    with tempfile.TemporaryDirectory() as directory:
        config = boot_config(model, policy, write_model_dir(model, speed, Path(directory)), kv_tokens)
        with PrefillEngine(config) as engine:
            send_all(engine, [traffic.tokens(BLOCK)], 1, "first")
            if not cells[0].cold:
                send_all(engine, traffic.filling(kv_tokens), 32, "fill")
            for number, cell in enumerate(cells):
                send_all(engine, traffic.seeds(cell), 1, f"seed{number}")
                prompts = traffic.prompts(cell, max(16, per_client * cell.concurrency))
                measured = closed_loop(engine, prompts, cell.concurrency, f"cell{number}")
                yield _row(
                    cell,
                    policy,
                    clock="real",
                    speed=speed,
                    seconds=measured.seconds * speed,
                    completion=[seconds * speed for seconds in measured.completion],
                    reused=measured.reused,
                    waves=measured.waves,
                    rounds=measured.rounds,
                )
            engine.audit()


def _row(
    cell: Cell,
    policy: str,
    *,
    clock: str,
    speed: float,
    seconds: float,
    completion: Sequence[float],
    reused: int,
    waves: int,
    rounds: int,
    planning: float = 0.0,
    idle: tuple[Idle, ...] = (),
) -> CellRow:
    count = len(completion)
    tokens = sum(cell.shapes[index % len(cell.shapes)].tokens for index in range(count))
    return CellRow(
        model=cell.model,
        policy=policy,
        family=cell.family,
        concurrency=cell.concurrency,
        requests=count,
        clock=clock,
        speed=speed,
        throughput=tokens / seconds,
        bound=cell_bound(cell),
        computed=(tokens - reused) / seconds,
        p50=statistics.median(completion),
        p95=p95(completion),
        reused=reused / tokens,
        reusable=1 - cell.uncached / cell.tokens,
        waves=waves,
        rounds=rounds,
        planning=planning,
        idle=idle,
    )
