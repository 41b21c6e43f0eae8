"""How often a graph with two replicas computes a prefix that many requests ask for at once, for the first time.

``python -m bench.cold_bursts [--bursts 6] [--requests 12] [--Service.key=value …]`` starts the default graph and sends
bursts: all requests of one share a prefix that nobody has seen, or share nothing. It prints how the router spread them
and how many prompt tokens were computed, so that settings of the router can be compared.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import track

from bench.common.origin import origin_now
from bench.common.served_graph import ServedGraph, serve
from bench.common.tables import plain_table, print_table


@dataclass(frozen=True)
class Burst:
    """What became of requests that were sent at once.

    Attributes:
        requests_by_replica: largest first.
        prompt_tokens, computed_tokens: over all of them; the others were reused.
        seconds: until the last answer.
    """

    requests_by_replica: tuple[int, ...]
    prompt_tokens: int
    computed_tokens: int
    seconds: float


def send(served: ServedGraph, prompts: list[list[int]]) -> Burst:
    """Send all prompts at once, and wait for all answers."""
    with (
        httpx.Client(base_url=served.base_url, timeout=300) as client,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):

        def ask(prompt: list[int]) -> dict[str, Any]:
            body = {"model": served.model, "prompt": prompt, "max_tokens": 2, "temperature": 0}
            answer = client.post("/v1/completions", json={**body, "nvext": {"extra_fields": ["worker_id"]}})
            return dict(answer.raise_for_status().json())

        begun = time.perf_counter()
        answers = list(pool.map(ask, prompts))
        seconds = time.perf_counter() - begun
    replicas = Counter(answer["nvext"]["worker_id"]["prefill_worker_id"] for answer in answers)
    usages = [answer["usage"] for answer in answers]
    total = sum(usage["prompt_tokens"] for usage in usages)
    # Without a reused token there may be no details.
    reused = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for usage in usages)
    return Burst(tuple(sorted(replicas.values(), reverse=True)), total, total - reused, seconds)


def measure(
    served: ServedGraph, bursts: int, requests: int, prefix: int, suffix: int
) -> dict[str, list[Burst]]:
    """``bursts`` bursts of each kind, in turn."""
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(1000, 20000) for _ in range(count)]

    send(served, [tokens(64) for _ in range(4)])
    kinds: dict[str, list[Burst]] = {"one cold prefix": [], "nothing shared": []}
    for _ in track(range(bursts), description="bursts"):
        shared = tokens(prefix)
        kinds["one cold prefix"].append(send(served, [shared + tokens(suffix) for _ in range(requests)]))
        kinds["nothing shared"].append(send(served, [tokens(suffix + suffix) for _ in range(requests)]))
    return kinds


def main(
    context: typer.Context,
    bursts: Annotated[int, typer.Option(help="Bursts of each kind.")] = 6,
    requests: Annotated[int, typer.Option(help="Requests in a burst.")] = 12,
    prefix: Annotated[int, typer.Option(help="Tokens of a shared prefix.")] = 1024,
    suffix: Annotated[int, typer.Option(help="Tokens of each request's own.")] = 32,
    out: Annotated[Path | None, typer.Option(help="Write the bursts as JSON.")] = None,
) -> None:
    """Print how bursts were spread over the replicas, and what they computed."""
    with serve("graphs:disagg_wavepp", *context.args) as served:
        origin, kinds = origin_now(), measure(served, bursts, requests, prefix, suffix)
    table = plain_table(
        f"bursts of {requests} requests, a prefix of {prefix} tokens and {suffix} of their own",
        f"{' '.join(context.args) or 'the defaults'}; measured at {origin}",
        texts=["in common", "requests by replica, each burst"],
        numbers=["prompt tokens", "computed", "median seconds"],
    )
    for kind, sent in kinds.items():
        table.add_row(
            kind,
            ", ".join("+".join(map(str, burst.requests_by_replica)) for burst in sent),
            f"{sum(burst.prompt_tokens for burst in sent):,}",
            f"{sum(burst.computed_tokens for burst in sent):,}",
            f"{statistics.median(burst.seconds for burst in sent):.2f}",
        )
    print_table(Console(), table)
    if out is not None:
        rows = {kind: [asdict(burst) for burst in sent] for kind, sent in kinds.items()}
        out.write_text(json.dumps({**asdict(origin), "arguments": context.args, "bursts": rows}, indent=1))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
