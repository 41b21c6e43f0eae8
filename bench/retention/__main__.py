"""How well prefixes survive as requests arrive (paper, section 5.7): ``python -m bench.retention``.

Kimi K3 on virtual devices. Half of the requests carry one of 24 prefixes, drawn anew each time, and a suffix of their
own; the other half is cold and drives prefixes out of the cache. They arrive at random (Poisson) at each rate; every
policy gets the same requests at the same times. The paper does not publish its workload: rates and the meaning of a
good hit are its own, the rest is ours.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from bench.common.boot import boot_config
from bench.common.kept import read_kept, with_origin, write_kept
from bench.common.origin import origin_now
from bench.common.percentile import p95
from bench.common.policies import POLICIES, require_known
from bench.common.systems import write_model_dir
from bench.common.tables import print_table
from bench.retention.report import (
    GOOD,
    PAPER,
    RetentionPoint,
    retention_table,
    times_table,
    write_retention_figure,
)
from bench.retention.traffic import PREFIX, SUFFIX, PrefixTraffic
from bench.virtual.replica import Replica

MODEL = "kimi-k3-pp8"


def measure(policy: str, rate: float, requests: int, kv_tokens: int) -> RetentionPoint:
    """One policy at one rate, on a fresh replica whose cache holds the prefixes."""
    traffic = PrefixTraffic(seed=round(1000 * rate))
    with tempfile.TemporaryDirectory() as directory:
        replica = Replica(boot_config(MODEL, policy, write_model_dir(MODEL, 1.0, Path(directory)), kv_tokens))
    replica.closed_loop(traffic.prefixes, 8)
    begun = replica.events.now
    served = replica.open_loop(traffic.arrivals(rate, requests))
    seconds = replica.events.now - begun
    replica.audit()
    warm = [each for each in served if each.prompt_tokens == PREFIX + SUFFIX]
    completion = [each.completion for each in served]
    return RetentionPoint(
        rate=rate,
        policy=policy,
        good_hits=sum(each.reused_tokens >= GOOD * PREFIX for each in warm) / len(warm),
        p50=statistics.median(completion),
        p95=p95(completion),
        throughput=sum(each.prompt_tokens for each in served) / seconds,
    )


def main(
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(POLICIES)}; default: all.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests at each rate.")] = 300,
    kv_tokens: Annotated[
        int, typer.Option(help="Tokens of KV of each rank; the prefixes alone take 2.8 M.")
    ] = 5_000_000,
    out: Annotated[Path, typer.Option(help="Measured points, JSON; those in it are not repeated.")] = Path(
        "retention.json"
    ),
    figure: Annotated[Path | None, typer.Option(help="Write a PNG figure.")] = None,
) -> None:
    """Print the share of good hits per rate and policy beside the paper's."""
    policies = policy or list(POLICIES)
    require_known(policies, POLICIES)
    points, origin = read_kept(out, RetentionPoint), origin_now()
    done = {(point.policy, point.rate) for point in points}
    todo = [(name, rate) for name in policies for rate in PAPER if (name, rate) not in done]
    with Progress(console=Console(stderr=True)) as progress:
        for name, rate in progress.track(todo, description="measuring"):
            points.append(with_origin(measure(name, rate, requests, kv_tokens), origin))
            write_kept(out, points)
    console = Console()
    print_table(console, retention_table(points))
    print_table(console, times_table(points))
    if figure is not None:
        write_retention_figure(points, figure)
        typer.echo(figure)


if __name__ == "__main__":
    typer.run(main)
