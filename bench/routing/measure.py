"""Requests to a running graph, with what the router and the replicas say of each."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from bench.common.served_graph import ServedGraph
from bench.routing.rows import Answer
from bench.routing.traffic import Workload

TIMEOUT = 300.0


async def _ask(client: httpx.AsyncClient, model: str, prompt: list[int]) -> Answer:
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    begun = time.perf_counter()
    answer = await client.post(
        "/v1/completions", json={**body, "nvext": {"extra_fields": ["worker_id", "timing"]}}
    )
    seconds = time.perf_counter() - begun
    if answer.status_code != 200:
        raise RuntimeError(f"a request failed with {answer.status_code}: {answer.text[:500]}")
    told: dict[str, Any] = answer.json()
    usage, extra = told["usage"], told["nvext"]
    return Answer(
        seconds=seconds,
        prompt=usage["prompt_tokens"],
        # Without a reused token there may be no details.
        reused=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        foretold=extra["timing"].get("kv_hit_rate"),
        replica=extra["worker_id"]["prefill_worker_id"],
    )


def _client(served: ServedGraph) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=served.base_url, timeout=TIMEOUT, limits=limits)


async def _load(served: ServedGraph, workload: Workload) -> list[Answer]:
    async with _client(served) as client:
        waiting = list(reversed(workload.prompts))
        answers: list[Answer] = []

        async def loop() -> None:
            while waiting:
                answers.append(await _ask(client, served.model, waiting.pop()))

        async def once(prompt: list[int], at: float) -> None:
            await asyncio.sleep(at)
            answers.append(await _ask(client, served.model, prompt))

        if workload.clients:
            await asyncio.gather(*(loop() for _ in range(workload.clients)))
        else:
            await asyncio.gather(*map(once, workload.prompts, workload.at))
        return answers


async def _one_by_one(served: ServedGraph, prompts: list[list[int]], pause: float) -> list[Answer]:
    async with _client(served) as client:
        answers = []
        for prompt in prompts:
            await asyncio.sleep(pause)
            answers.append(await _ask(client, served.model, prompt))
        return answers


def load(served: ServedGraph, workload: Workload) -> tuple[list[Answer], float, float]:
    """Send a workload; its answers, the seconds they took, and the share of the processors that was busy.

    Raises:
        RuntimeError: a request failed; says how.
    """
    before, begun = _processor_times(), time.perf_counter()
    answers = asyncio.run(_load(served, workload))
    seconds = time.perf_counter() - begun
    idle, total = (now - then for now, then in zip(_processor_times(), before, strict=True))
    return answers, seconds, 1 - idle / max(1, total)


def at_rest(served: ServedGraph, prompts: list[list[int]], settle: float, pause: float) -> list[Answer]:
    """Send prompts one after the other, ``pause`` seconds apart, after ``settle`` seconds without any.

    Raises:
        RuntimeError: a request failed; says how.
    """
    time.sleep(settle)
    return asyncio.run(_one_by_one(served, prompts, pause))


def _processor_times() -> tuple[int, int]:
    """Idle and all time of the machine's processors so far."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return times[3] + times[4], sum(times)
