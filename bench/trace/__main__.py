"""Replay a public trace on virtual devices: ``python -m bench.trace ../shared/data/conversation_trace.jsonl``.

Requests arrive when the trace says, ``--rate`` times as fast, whether or not earlier ones are done. With ``--load 75``
they come as fast as keeps the stages busy for 75 % of the time if all waves are full. Prompts are made of the trace's
block ids, so that prefixes are shared as they were. One replica per policy on the virtual clock
(``bench.virtual.replica``); prefill only. ``--generate KIND`` draws the trace instead of reading one.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
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
from bench.common.systems import (
    SYSTEMS,
    VOCABULARY,
    WAVE_TOKENS,
    read_system_model,
    stage_cost,
    write_model_dir,
)
from bench.common.tables import plain_table, print_table
from bench.trace.file import TraceRequest, rate_for_load, read_trace, reusable
from bench.trace.generate import KINDS
from bench.trace.generate import generate as drawn
from bench.virtual.replica import Replica, Served

COLUMNS = (
    "reused",
    "prompt tok/s",
    "computed tok/s",
    "p50 s",
    "of best",
    "p95 s",
    "of best ",
    "p99 s",
    "busy",
    "rounds/request",
)


@dataclass(frozen=True)
class Result:
    """What a policy made of a trace; ``busy`` are seconds of the busiest stage."""

    served: list[Served]
    seconds: float
    busy: float
    rounds: int

    def time(self, share: float) -> float:
        """Seconds to the first token that this share of the requests took at most."""
        return percentile([each.completion for each in self.served], share)


def replay(replica: Replica, requests: list[TraceRequest], rate: float) -> list[Served]:
    """Send the trace's requests at their times; returns when all are answered."""
    begun = requests[0].timestamp
    arrivals = (
        ((request.timestamp - begun) / 1000 / rate, request.tokens(VOCABULARY)) for request in requests
    )
    return replica.open_loop(arrivals)


def main(
    trace: Annotated[
        Path | None, typer.Argument(exists=True, dir_okay=False, help="A trace, JSON lines.")
    ] = None,
    generate: Annotated[
        str | None, typer.Option(help=f"Draw a trace of one of these kinds: {', '.join(KINDS)}.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the generated trace.")] = 1,
    rate: Annotated[float, typer.Option(help="How many times as fast as it was.")] = 1.0,
    load: Annotated[
        list[float] | None,
        typer.Option(help="Per cent of the time that stages are to be busy; instead of the rate."),
    ] = None,
    requests: Annotated[int, typer.Option(help="Replay the first this many.")] = 2000,
    model: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SYSTEMS)}.")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: all.")
    ] = None,
    order: Annotated[list[str] | None, typer.Option(help="fcfs or prefix, or both; default: auto.")] = None,
    kv_tokens: Annotated[list[int] | None, typer.Option(help="Tokens of KV of each rank.")] = None,
    charge: Annotated[float, typer.Option(help="What the host's CPU time counts; 0 repeats exactly.")] = 1.0,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace of the last run, for ui.perfetto.dev.")
    ] = None,
) -> None:
    """Print hit rate, throughput and completion times per policy."""
    policies, models = policy or list(POLICIES), model or ["glm-5.2-pp4"]
    require_known(models, SYSTEMS)
    require_known(policies, POLICIES)
    if (trace is None) == (generate is None):
        raise typer.BadParameter("name a trace's file, or --generate one, and not both")
    if generate is not None:
        require_known([generate], KINDS)
    asked = read_trace(trace, requests) if trace else drawn(generate or "", requests, seed)
    for name in models:
        cost = stage_cost(read_system_model(name), SYSTEMS[name].stages)
        rates = [rate_for_load(asked, each / 100, cost, WAVE_TOKENS) for each in load] if load else [rate]
        for each in rates:
            title = trace.name if trace else f"generated trace '{generate}', seed {seed},"
            _replay_policies(title, asked, name, each, policies, kv_tokens, order, charge, timeline)


def _replay_policies(
    title: str,
    asked: list[TraceRequest],
    model: str,
    rate: float,
    policies: list[str],
    kv_tokens: list[int] | None,
    order: list[str] | None,
    charge: float,
    timeline: Path | None,
) -> None:
    offered = rate * 1000 * len(asked) / max(1, asked[-1].timestamp - asked[0].timestamp)
    table = plain_table(
        f"{title} on {SYSTEMS[model].name}: {len(asked)} requests at {offered:.2f}/s, "
        f"{reusable(asked):.1%} reusable without eviction",
        f"measured at {origin_now()}",
        texts=["policy", "order"],
        numbers=("pool", *COLUMNS),
    )
    rows = [
        (pool, name, which)
        for pool in kv_tokens or [2_000_000]
        for name in policies
        for which in order or ["auto"]
    ]
    results: dict[tuple[int, str, str], Result] = {}
    for row in track(rows, description="replaying", console=Console(stderr=True)):
        pool, name, which = row
        with tempfile.TemporaryDirectory() as directory:
            model_dir = write_model_dir(model, 1.0, Path(directory))
            config = boot_config(model, name, model_dir, pool, order=which)
            replica = Replica(config, charge=charge, timeline=timeline is not None)
        begun = replica.events.now
        served = replay(replica, asked, rate)
        seconds = replica.events.now - begun
        replica.audit()
        results[row] = Result(served, seconds, max(rank.busy for rank in replica.ranks), replica.rounds)
        if timeline is not None and row == rows[-1]:
            write_timeline(timeline, replica.timelines())
    best50, best95 = (min(result.time(share) for result in results.values()) for share in (0.5, 0.95))
    for (pool, name, which), result in results.items():
        tokens = sum(each.prompt_tokens for each in result.served)
        reused = sum(each.reused_tokens for each in result.served)
        table.add_row(
            name,
            which,
            f"{pool:,}",
            f"{reused / tokens:.1%}",
            f"{tokens / result.seconds:,.0f}",
            f"{(tokens - reused) / result.seconds:,.0f}",
            f"{result.time(0.5):.2f}",
            f"{result.time(0.5) / best50:.2f}",
            f"{result.time(0.95):.2f}",
            f"{result.time(0.95) / best95:.2f}",
            f"{result.time(0.99):.2f}",
            f"{result.busy / result.seconds:.0%}",
            f"{result.rounds / len(result.served):.2f}",
        )
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
