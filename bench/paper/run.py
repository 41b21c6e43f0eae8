"""One boot of the paper's evaluation: an engine, or a replica on the virtual clock, and a list of cells."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

from bench.common.percentile import p95
from bench.paper.cells import CELLS, Cell
from bench.paper.cost_models import SYSTEMS, M, cell_bound, model_dir
from bench.paper.rows import Idle, Row
from bench.paper.traffic import Traffic, enough_requests
from bench.virtual.replica import Replica

BLOCK = 64

POLICIES: dict[str, dict[str, Any]] = {
    "lockstep": {"admission": "lockstep", "planner": "greedy"},
    "wave": {"admission": "wave", "ownership": "none", "planner": "greedy"},
    "lease": {"admission": "wave", "ownership": "lease", "planner": "greedy"},
    "throttle": {"admission": "wave", "ownership": "lease", "planner": "throttle"},
    "mpu-paper": {"admission": "wave", "ownership": "lease", "planner": "mpu-paper"},
    "mpu": {"admission": "wave", "ownership": "lease", "planner": "mpu"},
}


def require_known(chosen: Iterable[str], known: Iterable[str]) -> None:
    """Raise BadParameter for the first name chosen on the command line that is not known."""
    names = list(known)
    if unknown := [name for name in chosen if name not in names]:
        raise typer.BadParameter(f"{unknown[0]} is not one of {', '.join(names)}")


def boot_config(
    model: str, policy: str, directory: Path, kv_tokens: int, round_delay: float = 0.0
) -> EngineConfig:
    """The configuration of one model and policy; ``directory`` is the timed model's."""
    system, switches = SYSTEMS[model], dict(POLICIES[policy])
    if switches["planner"] == "mpu-paper" and system.stages == 8:
        switches["planner"] = "two-budget"
    longest = max(shape.tokens for cell in CELLS if cell.model == model for shape in cell.shapes)
    return EngineConfig(
        model=directory,
        pp=system.stages,
        max_num_batched_tokens=M,
        block_size=BLOCK,
        kv_tokens=kv_tokens,
        max_model_len=longest,
        max_num_seqs=128,
        round_delay=round_delay,
        **switches,
    )


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
) -> Iterator[Row]:
    """Measure cells one after the other on the virtual clock.

    Each gets ``requests``, or ``times`` as many as ``enough_requests`` says.
    """
    traffic = Traffic()
    with tempfile.TemporaryDirectory() as directory:
        timed_model = model_dir(model, 1.0, Path(directory))
        config = boot_config(model, policy, timed_model, kv_tokens, round_delay)
        replica = Replica(config)
    if not cells[0].cold:
        replica.closed_loop((traffic.tokens(2 * M) for _ in range(kv_tokens // (2 * M))), 32)
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
) -> Iterator[Row]:
    """Measure cells one after the other on real processes, with devices ``speed`` times faster."""
    traffic = Traffic()
    with tempfile.TemporaryDirectory() as directory:
        config = boot_config(model, policy, model_dir(model, speed, Path(directory)), kv_tokens)
        with PrefillEngine(config) as engine:
            _send(engine, [traffic.tokens(BLOCK)], 1, "first")
            if not cells[0].cold:
                _send(engine, (traffic.tokens(2 * M) for _ in range(kv_tokens // (2 * M))), 32, "fill")
            for number, cell in enumerate(cells):
                _send(engine, traffic.seeds(cell), 1, f"seed{number}")
                before, begun = engine.stats(), time.perf_counter()
                count = max(16, per_client * cell.concurrency)
                results = _send(engine, traffic.prompts(cell, count), cell.concurrency, f"cell{number}")
                seconds = (time.perf_counter() - begun) * speed
                # Totals come with the ranks' next heartbeat.
                time.sleep(0.6)
                after = engine.stats()
                yield _row(
                    cell,
                    policy,
                    clock="real",
                    speed=speed,
                    seconds=seconds,
                    completion=[result.timings.total * speed for result in results],
                    reused=sum(result.reused_tokens for result in results),
                    waves=after.waves - before.waves,
                    rounds=after.rounds - before.rounds,
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
) -> Row:
    count = len(completion)
    tokens = sum(cell.shapes[index % len(cell.shapes)].tokens for index in range(count))
    return Row(
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


def _send(
    engine: PrefillEngine, prompts: Iterable[bytes], concurrency: int, name: str
) -> list[PrefillResult]:
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
