"""Who is served first when the prefixes do not all fit: ``python -m bench.order``.

Clients in a closed loop ask for one of ``--prefixes`` of 16,384 tokens and 512 tokens of their own. The pool holds six
of the prefixes and little more, or all; of many short ones (``--prefix-tokens``) hardly any. One replica on the virtual
clock (``bench.virtual.replica``) for each row.
"""

from __future__ import annotations

import statistics
import tempfile
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
from bench.order.traffic import PREFIX, PREFIXES, SUFFIX, SuffixTraffic, most_passed
from bench.virtual.replica import Replica

Order = Literal["fcfs", "prefix"]
ORDERS: tuple[Order, ...] = get_args(Order)
COLUMNS = ("reused", "prompt tok/s", "p50 s", "p95 s", "waiting p99 s", "most passed", "rounds/request")


def measure(
    device: str,
    order: Order,
    bound: int | None,
    pool: int,
    clients: int,
    requests: int,
    charge: float,
    traffic: SuffixTraffic,
    longest: int,
) -> list[str]:
    """One row: a fresh replica, which has seen all prefixes."""
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
    served = replica.closed_loop(traffic.prompts(requests), clients)
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
        numbers=("pool", "clients", "seed", "bound", *COLUMNS),
    )
    default: list[int | None] = [None]
    rows = [
        (size, count, cast(Order, name), limit, drawn)
        for size in pool or [100_000, 400_000]
        for count in clients or [8, 32, 128]
        for drawn in seed or [count]
        for name in order or ORDERS
        for limit in (default if name == "fcfs" or not bound else bound)
    ]
    for size, count, name, limit, drawn in track(rows, description="measuring"):
        traffic = SuffixTraffic(drawn, prefixes, unequal, prefix_tokens, suffix_tokens)
        asked = max(least, requests * count)
        longest = prefix_tokens + suffix_tokens
        figures = measure(model, name, limit, size, count, asked, charge, traffic, longest)
        bound_shown = "default" if limit is None else f"{limit:,}"
        table.add_row(name, f"{size:,}", str(count), str(drawn), bound_shown, *figures)
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
