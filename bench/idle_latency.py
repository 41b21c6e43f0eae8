"""Where the time to first token of one short request goes on an idle graph.

``python -m bench.idle_latency [--requests 20] [--tokens 64] [--Service.key=value …]`` starts the default
graph, sends one streaming request at a time, and prints medians: the sum of the stages' compute, and what is
not model compute (frontend, admission, between stages, hand-off). Scenario S52: that rest must stay small.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import track

from bench.common.origin import origin_now
from bench.common.percentile import p95
from bench.common.served_graph import ServedGraph, serve
from bench.common.tables import plain_table, print_table


def first_token_seconds(client: httpx.Client, model: str, prompt: list[int]) -> float:
    """Time from sending a request to its first streamed token."""
    body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True}
    begun = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                return time.perf_counter() - begun
    raise RuntimeError("the answer ended without a token")


def newest_timing(served: ServedGraph, seen: set[str]) -> dict[str, Any]:
    """The timings of the request that some prefill worker finished last."""
    for port in served.ports("PrefillWorker"):
        answer = httpx.post(f"http://127.0.0.1:{port}/engine/control/timings", json={"last": 1}).json()
        for timing in answer["timings"]:
            if timing["request_id"] not in seen:
                seen.add(timing["request_id"])
                return timing
    raise RuntimeError("no prefill worker reports the request")


def measure(served: ServedGraph, requests: int, tokens: int) -> list[dict[str, float]]:
    """One row per request, in seconds.

    Every prompt is new, so nothing is reused, and made of whole words: after bytes of unfinished characters the
    frontend would hold the first token back until it has a text.
    """
    draw, seen, rows = random.Random(0), set[str](), []
    with httpx.Client(base_url=served.base_url, timeout=60) as client:
        for index in track(range(-3, requests), description="requests"):
            prompt = [draw.randrange(1000, 20000) for _ in range(tokens)]
            ttft = first_token_seconds(client, served.model, prompt)
            timing = newest_timing(served, seen)
            stages = {f"stage {stage['rank']} compute": stage["compute"] for stage in timing["stages"]}
            compute = sum(stages.values())
            row = {
                "time to first token": ttft,
                **stages,
                "not model compute": ttft - compute,
                "  frontend, routing, hand-off, decode": ttft - timing["total"],
                "  admission": timing["queued"] + timing["admission"],
                "  between stages, sampling, reply": timing["execution"] - compute,
            }
            if index >= 0:
                rows.append(row)
    return rows


def main(
    context: typer.Context,
    requests: Annotated[int, typer.Option(help="Requests measured, after 3 to warm up.")] = 20,
    tokens: Annotated[int, typer.Option(help="Prompt length.")] = 64,
    out: Annotated[Path | None, typer.Option(help="Write the rows as JSON.")] = None,
) -> None:
    """Print the breakdown of an idle graph's time to first token."""
    with serve("graphs:disagg_wavepp", *context.args) as served:
        origin, rows = origin_now(), measure(served, requests, tokens)
    table = plain_table(
        f"idle time to first token, {tokens} tokens, {requests} requests",
        f"measured at {origin}",
        texts=["part"],
        numbers=["median ms", "p95 ms"],
    )
    for name in rows[0]:
        values = [1000 * row[name] for row in rows]
        table.add_row(name, f"{statistics.median(values):.1f}", f"{p95(values):.1f}")
    print_table(Console(), table)
    if out is not None:
        out.write_text(json.dumps({**asdict(origin), "seconds": rows}, indent=1))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
