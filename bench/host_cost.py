"""What a request costs the host, and whether anything grows: ``python -m bench.host_cost``.

Many short requests go through one replica whose devices are virtual and take next to no time, so that all there is to
measure is the engine, its ranks and their messages. With ``--requests 100000`` it shows whether memory grows.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.model.timed.timed_model import Link, TimedModel, write_timed_model

from bench.common.closed_loop import send_all
from bench.common.origin import origin_now
from bench.common.tables import plain_table, print_table

VOCABULARY = 49_152
PARTS = 10
"""In which the requests are sent, each measured alone."""
MOST_GROWTH = 0.05
"""Share of its memory by which a process may have grown between the parts of ``EARLY`` and those of ``LATE``."""
EARLY, LATE = slice(2, 5), slice(7, 10)
"""Parts whose median counts: what is freed goes back to the system by the way, so one part may stand at a peak."""
SAMPLES = 8
"""Of memory in a part, whose median counts."""
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
LINK = Link(latency=0.0, bandwidth=1e15)


def timed_model(directory: Path, layers: int) -> Path:
    """A model whose waves take a microsecond a layer."""
    model = TimedModel(
        name="no time",
        layers=layers,
        vocabulary=VOCABULARY,
        context_length=4096,
        wave_seconds=1e-6,
        token_seconds=1e-12,
        context_seconds=0.0,
        activation_bytes=512,
        kv_bytes=512,
        hop=LINK,
        to_host=LINK,
        from_host=LINK,
    )
    return write_timed_model(directory, model)


def prompts(seed: int, count: int, tokens: int) -> Iterator[bytes]:
    """Packed token ids that have nothing in common."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield draw.integers(10, VOCABULARY - 10, tokens, dtype=np.uint32).tobytes()


def usage(pid: int) -> tuple[float, int]:
    """CPU seconds and bytes of memory of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS, int(fields[21]) * PAGE


def sampled(
    prompts: Iterable[bytes], count: int, pids: Sequence[int], sizes: list[list[int]]
) -> Iterator[bytes]:
    """The ``count`` prompts; on the way, bytes of memory of every process go to ``sizes``."""
    for number, prompt in enumerate(prompts):
        if number % max(1, count // SAMPLES) == 0:
            sizes.append([usage(pid)[1] for pid in pids])
        yield prompt


def growth(parts: Sequence[float]) -> float:
    """By which share memory has grown, from that of each part."""
    return median(parts[LATE]) / median(parts[EARLY]) - 1


def main(
    requests: Annotated[int, typer.Option(help="In all.", min=PARTS)] = 10_000,
    tokens: Annotated[int, typer.Option(help="Of each.", min=1)] = 32,
    clients: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 128,
    stages: Annotated[int, typer.Option(help="Of the pipeline.", min=1)] = 2,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print requests per second, CPU of a request and memory by process; exit code 1 if memory grew."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig(
            model=timed_model(Path(directory), stages),
            pp=stages,
            max_num_batched_tokens=512,
            block_size=32,
            kv_tokens=100_000,
            max_num_seqs=128,
        )
        with PrefillEngine(config) as engine:
            names = ["client", *(f"rank {rank}" for rank in range(stages))]
            pids = [os.getpid(), *engine.rank_pids]
            for part in range(PARTS):
                sizes: list[list[int]] = []
                asked = sampled(prompts(part, requests // PARTS, tokens), requests // PARTS, pids, sizes)
                before, begun = [usage(pid)[0] for pid in pids], time.perf_counter()
                send_all(engine, asked, clients, f"part{part}")
                seconds = time.perf_counter() - begun
                after = [usage(pid)[0] for pid in pids]
                rows.append(
                    {
                        "requests_per_second": requests // PARTS / seconds,
                        "cpu_ms": [
                            1000 * (now - was) / (requests // PARTS)
                            for was, now in zip(before, after, strict=True)
                        ],
                        "mib": [median(each) / 2**20 for each in zip(*sizes, strict=True)],
                    }
                )
            engine.audit()
    _print(rows, names, f"{requests:,} requests of {tokens} tokens, {clients} at a time; {origin_now()}")
    if out is not None:
        out.write_text(json.dumps({**vars(origin_now()), "processes": names, "parts": rows}, indent=1))
    grown = [
        f"{name} by {share:.1%}"
        for number, name in enumerate(names)
        if (share := growth([row["mib"][number] for row in rows])) > MOST_GROWTH
    ]
    if grown:
        raise SystemExit(
            f"error: memory grew between parts {EARLY.start} to {EARLY.stop - 1} and {LATE.start} to {LATE.stop - 1}: "
            f"{', '.join(grown)}"
        )


def _print(rows: list[dict[str, Any]], names: list[str], title: str) -> None:
    table = plain_table(
        title,
        "memory: the median of each part; the books of every rank balanced at the end",
        numbers=["part", "requests/s", *(f"{name}: CPU ms, MiB" for name in names)],
    )
    for part, row in enumerate(rows):
        used = (f"{cpu:.3f}, {mib:.1f}" for cpu, mib in zip(row["cpu_ms"], row["mib"], strict=True))
        table.add_row(str(part), f"{row['requests_per_second']:,.0f}", *used)
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
