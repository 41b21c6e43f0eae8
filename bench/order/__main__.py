"""Who is served first when the prefixes do not all fit: ``python -m bench.order``.

Clients in a closed loop ask for one of ``--prefixes`` of 16,384 tokens and 512 tokens of their own. The pool holds six
of the prefixes and little more, or all; of many short ones (``--prefix-tokens``) hardly any. With ``--strangers`` a
part of all requests share nothing, with ``--burst`` one prefix after another is asked for, and with ``--rate`` requests
come at random, however many wait. One replica on the virtual clock (``bench.virtual.replica``) for each row.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer
from rich.console import Console
from rich.progress import track
from wavepp_worker import EngineConfig

from bench.common.origin import origin_now
from bench.common.percentile import p95, percentile
from bench.common.policies import require_known
from bench.common.systems import BLOCK
from bench.common.tables import plain_table, print_table
from bench.order.devices import DEVICES, write_device_dir
from bench.order.traffic import (
    NOBODY,
    PREFIX,
    PREFIXES,
    SUFFIX,
    MovingTraffic,
    Strangers,
    SuffixTraffic,
    most_passed,
)
from bench.virtual.replica import Replica

Order = Literal["fcfs", "prefix"]
ORDERS: tuple[Order, ...] = get_args(Order)
COLUMNS = ("reused", "prompt tok/s", "p50 s", "p95 s", "waiting p99 s", "most passed", "rounds/request")


@dataclass(frozen=True)
class Asking:
    """So many clients, each after its last answer; or so many requests per second, whatever was answered."""

    clients: int
    rate: float | None
    seed: int


def at_random(prompts: Iterator[bytes], rate: float, seed: int) -> Iterator[tuple[float, bytes]]:
    """Each with the second at which it comes, a Poisson process."""
    draw, now = random.Random(seed), 0.0
    for prompt in prompts:
        now += draw.expovariate(rate)
        yield now, prompt


def measure(
    device: str,
    order: Order,
    bound: int | None,
    pool: int,
    asking: Asking,
    requests: int,
    charge: float,
    traffic: SuffixTraffic | MovingTraffic,
    longest: int,
) -> list[str]:
    """One row: a fresh replica, which has seen all prefixes of ``SuffixTraffic``."""
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig(
            model=write_device_dir(device, Path(directory)),
            pp=DEVICES[device].stages,
            max_num_batched_tokens=DEVICES[device].wave_tokens,
            block_size=BLOCK,
            kv_tokens=pool,
            max_model_len=longest,
            max_num_seqs=128,
            order=order,
            order_max_passed_tokens=bound,
        )
        replica = Replica(config, charge=charge)
    replica.closed_loop(traffic.prefixes, 2)
    begun = replica.events.now
    prompts = traffic.prompts(requests)
    if asking.rate is None:
        served = replica.closed_loop(prompts, asking.clients)
    else:
        served = replica.open_loop(at_random(prompts, asking.rate, asking.seed))
    seconds = replica.events.now - begun
    replica.audit()
    tokens = sum(each.prompt_tokens for each in served)
    completion = [each.completion for each in served]
    return [
        f"{sum(each.reused_tokens for each in served) / tokens:.1%}",
        f"{tokens / seconds:,.0f}",
        f"{statistics.median(completion):.2f}",
        f"{p95(completion):.2f}",
        f"{percentile([each.waiting for each in served], 0.99):.2f}",
        f"{most_passed(served):,}",
        f"{replica.rounds / len(served):.2f}",
    ]


def main(
    clients: Annotated[list[int] | None, typer.Option(help="Default: 8, 32 and 128.")] = None,
    order: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(ORDERS)}; default: all.")
    ] = None,
    bound: Annotated[
        list[int] | None, typer.Option(help="order_max_passed_tokens; default: the product's.")
    ] = None,
    pool: Annotated[list[int] | None, typer.Option(help="Tokens of KV of each rank.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of a row, per client.")] = 16,
    least: Annotated[int, typer.Option(help="Requests of a row at least.")] = 512,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "glm-5.2-pp4",
    prefixes: Annotated[int, typer.Option(help="How many prefixes there are.")] = PREFIXES,
    prefix_tokens: Annotated[int, typer.Option(help="Of each prefix.")] = PREFIX,
    suffix_tokens: Annotated[int, typer.Option(help="That follow it.")] = SUFFIX,
    unequal: Annotated[
        float,
        typer.Option(help="The n-th prefix is asked for n to the power of this as seldom as the first."),
    ] = 0.0,
    strangers: Annotated[
        float, typer.Option(help="Which part of all requests share nothing.", min=0, max=1)
    ] = 0.0,
    stranger_tokens: Annotated[int, typer.Option(help="Of each of those.")] = NOBODY.tokens,
    burst: Annotated[
        int, typer.Option(help="Requests for one prefix before the next one's; 0: all at any time.")
    ] = 0,
    stragglers: Annotated[
        float,
        typer.Option(help="With --burst, which part of all ask for one of --prefixes before.", min=0, max=1),
    ] = 0.0,
    rate: Annotated[
        list[float] | None, typer.Option(help="Requests per second, in place of clients.", min=0.001)
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Of the traffic; default: the clients.")] = None,
    charge: Annotated[float, typer.Option(help="What the host's CPU time counts; 0 repeats exactly.")] = 1.0,
) -> None:
    """Print hit rate, throughput and times by pool, clients and order."""
    require_known([model], DEVICES)
    require_known(order or ORDERS, ORDERS)
    table = plain_table(
        f"{prefixes} prefixes of {prefix_tokens:,} tokens and {suffix_tokens} of one's own on {DEVICES[model].name}",
        f"measured at {origin_now()}",
        texts=["order"],
        numbers=("pool", "clients" if rate is None else "requests/s", "seed", "bound", *COLUMNS),
    )
    default: list[int | None] = [None]
    rows = [
        (size, Asking(count, often, drawn), cast(Order, name), limit)
        for size in pool or [100_000, 400_000]
        for count, often in (
            [(1, each) for each in rate] if rate else [(each, None) for each in clients or [8, 32, 128]]
        )
        for drawn in seed or [count]
        for name in order or ORDERS
        for limit in (default if name == "fcfs" or not bound else bound)
    ]
    others = Strangers(strangers, stranger_tokens)
    longest = max(prefix_tokens + suffix_tokens, stranger_tokens)
    for size, asking, name, limit in track(rows, description="measuring"):
        traffic: SuffixTraffic | MovingTraffic = (
            MovingTraffic(asking.seed, burst, stragglers, prefixes, prefix_tokens, suffix_tokens, others)
            if burst
            else SuffixTraffic(asking.seed, prefixes, unequal, prefix_tokens, suffix_tokens, others)
        )
        asked = max(least, requests * asking.clients)
        figures = measure(model, name, limit, size, asking, asked, charge, traffic, longest)
        bound_shown = "default" if limit is None else f"{limit:,}"
        by = str(asking.clients) if asking.rate is None else f"{asking.rate:g}"
        table.add_row(name, f"{size:,}", by, str(asking.seed), bound_shown, *figures)
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
