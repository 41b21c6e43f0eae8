"""Replay a public trace on virtual devices: ``python -m bench.trace ../shared/data/conversation_trace.jsonl``.

Requests arrive when the trace says, ``--rate`` times as fast, whether or not earlier ones are done. Prompts are made of
the trace's block ids, so that prefixes are shared as they were. One replica per policy on the virtual clock
(``bench.virtual.replica``); prefill only.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from wavepp_worker.runtime.trace.perfetto import write_timeline

from bench.common.boot import boot_config
from bench.common.origin import origin_now
from bench.common.percentile import percentile
from bench.common.policies import POLICIES, require_known
from bench.common.systems import SYSTEMS, VOCABULARY, write_model_dir
from bench.common.tables import plain_table, print_table
from bench.trace.file import TraceRequest, read_trace, reusable
from bench.virtual.replica import Replica, Served

COLUMNS = ("reused", "prompt tok/s", "computed tok/s", "p50 s", "p95 s", "p99 s", "busy", "rounds/request")


def replay(replica: Replica, requests: list[TraceRequest], rate: float) -> list[Served]:
    """Send the trace's requests at their times; returns when all are answered."""
    begun = requests[0].timestamp
    arrivals = (
        ((request.timestamp - begun) / 1000 / rate, request.tokens(VOCABULARY)) for request in requests
    )
    return replica.open_loop(arrivals)


def main(
    trace: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A trace, JSON lines.")],
    rate: Annotated[float, typer.Option(help="How many times as fast as it was.")] = 1.0,
    requests: Annotated[int, typer.Option(help="Replay the first this many.")] = 2000,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(SYSTEMS)}.")] = "glm-5.2-pp4",
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: all.")
    ] = None,
    order: Annotated[list[str] | None, typer.Option(help="fcfs or prefix, or both; default: auto.")] = None,
    kv_tokens: Annotated[list[int] | None, typer.Option(help="Tokens of KV of each rank.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of the last run, for ui.perfetto.dev.")
    ] = None,
) -> None:
    """Print hit rate, throughput and completion times per policy."""
    policies = policy or list(POLICIES)
    require_known([model], SYSTEMS)
    require_known(policies, POLICIES)
    asked, origin = read_trace(trace, requests), origin_now()
    offered = rate * 1000 * len(asked) / max(1, asked[-1].timestamp - asked[0].timestamp)
    table = plain_table(
        f"{trace.name} on {SYSTEMS[model].name}: {len(asked)} requests at {offered:.2f}/s, "
        f"{reusable(asked):.1%} reusable without eviction",
        f"measured at {origin}",
        texts=["policy", "order"],
        numbers=("pool", *COLUMNS),
    )
    rows = [
        (pool, name, which)
        for pool in kv_tokens or [2_000_000]
        for name in policies
        for which in order or ["auto"]
    ]
    for pool, name, which in track(rows, description="replaying"):
        with tempfile.TemporaryDirectory() as directory:
            model_dir = write_model_dir(model, 1.0, Path(directory))
            config = boot_config(model, name, model_dir, pool, order=which)
            replica = Replica(config, timeline=timeline is not None)
        begun = replica.events.now
        served = replay(replica, asked, rate)
        seconds = replica.events.now - begun
        replica.audit()
        completion = [each.completion for each in served]
        tokens = sum(each.prompt_tokens for each in served)
        reused = sum(each.reused_tokens for each in served)
        busy = max(rank.busy for rank in replica.ranks) / seconds
        table.add_row(
            name,
            which,
            f"{pool:,}",
            f"{reused / tokens:.1%}",
            f"{tokens / seconds:,.0f}",
            f"{(tokens - reused) / seconds:,.0f}",
            *(f"{percentile(completion, share):.2f}" for share in (0.5, 0.95, 0.99)),
            f"{busy:.0%}",
            f"{replica.rounds / len(served):.2f}",
        )
        if timeline is not None and (pool, name, which) == rows[-1]:
            write_timeline(timeline, replica.timelines())
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
