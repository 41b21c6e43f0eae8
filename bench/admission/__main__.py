"""What finding and claiming reusable cache costs: two walks of the tree against the hint index and leases.

``python -m bench.admission`` measures, for long prompts that share most of their prefix and against a tree
that another thread keeps changing: first every step by itself on one rank, whose tree changes without a
pause; then hint discovery and rounds between real processes, whose trees change once per ``--pause``. The
paper's figures are from another machine and another language: they say what the mechanism is for.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress
from wavepp_worker.cache.hashing import block_hashes
from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.protocol.lane_events import LaneEnded, LaneScheduled, LaneStarted
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan

from bench.admission.cached_rank import CHURN_BLOCKS, SEED, WAIT, CachedRank, Workload, first_walk
from bench.admission.ranks import Ranks
from bench.admission.report import INDEX, WALKS, Samples, draw_figure, show

T = TypeVar("T")


def timed(samples: list[float], call: Callable[[], T]) -> T:
    begun = time.perf_counter()
    result = call()
    samples.append(time.perf_counter() - begun)
    return result


def measure_steps(workload: Workload, concurrency: int, turns: int, tick: Callable[[], None]) -> Samples:
    """Seconds of every step of admission on one rank; in every turn ``concurrency`` new prompts wait."""
    samples: Samples = defaultdict(list)
    prefixes, draw, tokens = workload.prefixes(), random.Random(1), workload.tokens
    with CachedRank(0, workload, pause=0.0) as rank:
        cache = rank.cache
        for turn in range(turns):
            prompts = workload.prompts(prefixes, concurrency, draw)
            for prompt in prompts[:8]:
                timed(
                    samples["hashing: block by block"], lambda p=prompt: block_hashes(p, workload.block, SEED)
                )
            waiting = {
                f"{turn}-{at}": timed(
                    samples["hashing: shared prefix remembered"], lambda p=prompt: rank.hasher.keys(p, SEED)
                )
                for at, prompt in enumerate(prompts)
            }
            begun = time.perf_counter()
            for keys in waiting.values():
                timed(samples["look-up: two walks (the first)"], lambda k=keys: first_walk(cache, k, tokens))
            samples[f"look-up of all that wait: {WALKS}"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            for keys in waiting.values():
                timed(samples["look-up: hint index"], lambda k=keys: cache.hint(k, tokens))
            samples[f"look-up of all that wait: {INDEX}"].append(time.perf_counter() - begun)
            for name, keys in waiting.items():
                hint = cache.hint(keys, tokens)
                end = timed(samples["lease"], lambda n=name, k=keys, h=hint: cache.lease(n, k, tokens, h))
                if end != hint or hint < 0.99 * workload.shared * tokens:
                    raise RuntimeError(
                        f"hinted {hint} tokens, leased {end}: the branches are not in the cache"
                    )
                if not timed(samples["escrow"], lambda n=name: cache.reserve(n)):
                    raise RuntimeError("the cache is too small; give it more --room")
                timed(samples["commit"], lambda n=name, e=end: cache.commit(n, e))
                timed(samples["materialise"], lambda n=name: cache.materialise(n))
                timed(samples["publish"], lambda n=name: cache.publish(n, tokens))
                timed(samples["release"], lambda n=name: cache.release(n))
            tick()
        changes = rank.changes
    cache.check()
    if not changes:
        raise RuntimeError("the tree did not change while it was measured")
    return samples


def measure_discovery(
    ranks: Ranks, name: str, prompts: list[bytes], concurrency: int, samples: Samples
) -> None:
    """Arrivals one after the other while ``concurrency`` wait, then as many at once.

    One is discovered once its candidate is agreed: tokens sent and hashed, looked up, and votes gathered.
    """
    requests = [PrefillRequest(request_id=f"{name}-{at}", tokens=tokens) for at, tokens in enumerate(prompts)]
    ids = [request.request_id for request in requests]
    for at, request in enumerate(requests):
        leaving = tuple(ids[max(0, at - concurrency) : max(0, at - concurrency + 1)])
        plan = Plan(round_id=0, arrivals=(request,), release=leaving, hint=(ids[at],))
        timed(samples[f"discovery: {name}"], lambda p=plan: ranks.run(p))
        plan = Plan(round_id=0, hint=(ids[at],))
        timed(samples[f"round that looks one up again: {name}"], lambda p=plan: ranks.run(p))
    ranks.run(Plan(round_id=0, release=tuple(ids)))
    burst = Plan(
        round_id=ranks.rounds, arrivals=tuple(requests[-concurrency:]), hint=tuple(ids[-concurrency:])
    )
    timed(samples[f"discovery of {concurrency} arrivals at once: {name}"], lambda: ranks.run(burst))
    ranks.run(Plan(round_id=0, release=tuple(ids)))


def measure_closed_loop(
    ranks: Ranks, name: str, prompts: list[bytes], concurrency: int, batch: int, samples: Samples
) -> float:
    """Run all prompts, ``concurrency`` waiting or running at a time; returns rounds per admitted request."""
    planner = RoundPlanner(AdmissionQueue(batch), leases=True)
    first, deadline = ranks.rounds, time.perf_counter() + WAIT
    pending = [PrefillRequest(request_id=f"loop-{at}", tokens=tokens) for at, tokens in enumerate(prompts)]
    submitted: dict[str, float] = {}
    ended = 0
    while ended < len(prompts):
        now = time.perf_counter()
        if now > deadline:
            raise TimeoutError(f"{len(prompts) - ended} requests have not ended after {WAIT:.0f} s")
        while ranks.rank.ended:
            ended += 1
            request_id = ranks.rank.ended.popleft()
            planner.advance(LaneStarted(request_id))
            planner.advance(LaneScheduled(request_id))
            planner.advance(LaneEnded(request_id, aborted=False))
        if pending and len(submitted) - ended < concurrency:
            request = pending.pop()
            submitted[request.request_id] = now
            planner.submit(request, now)
        plan = planner.next_plan(now) if planner.due(now) <= now else None
        if plan is None:
            time.sleep(0.0002)
            continue
        outcome = ranks.run(plan)
        now = time.perf_counter()
        planner.apply(plan, outcome, now)
        for arrival in plan.arrivals:
            samples[f"discovery between admissions: {name}"].append(now - submitted[arrival.request_id])
    return (ranks.rounds - first) / len(prompts)


def main(
    tokens: Annotated[int, typer.Option(help="Prompt length.")] = 200_000,
    block: Annotated[int, typer.Option(help="Tokens per block.")] = 32,
    shared: Annotated[float, typer.Option(help="Part of each prompt that is in the cache.")] = 0.9,
    branches: Annotated[int, typer.Option(help="Different shared prefixes.")] = 8,
    concurrency: Annotated[int, typer.Option(help="Prompts that wait at once.")] = 64,
    batch: Annotated[int, typer.Option(help="Most requests that hold a lease at once.")] = 16,
    ranks: Annotated[int, typer.Option("--pp", help="Ranks; each is a process.")] = 4,
    turns: Annotated[int, typer.Option(help="How often every prompt of a wave of prompts is new.")] = 8,
    pause: Annotated[
        float, typer.Option(help="Seconds between changes of each rank's tree in rounds.")
    ] = 0.01,
    out: Annotated[Path | None, typer.Option(help="Write all samples (seconds) as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the comparison (PNG, needs matplotlib).")] = None,
) -> None:
    """Print what each step of admission costs, by two walks and by hint index and lease."""
    suffix = -(-tokens // block) - int(tokens * shared) // block
    workload = Workload(tokens, block, shared, branches, room=(batch + 2) * suffix + 64 * CHURN_BLOCKS)
    rounds: dict[str, float] = {}
    with Progress() as progress:
        task = progress.add_task("measuring", total=turns + 4)
        samples = measure_steps(workload, concurrency, turns, lambda: progress.advance(task))
        draw, prefixes = random.Random(2), workload.prefixes()
        for way in (WALKS, INDEX):
            with Ranks(workload, ranks, pause, two_walks=way == WALKS) as processes:
                processes.run(Plan(round_id=0))
                prompts = workload.prompts(prefixes, 4 * concurrency, draw)
                measure_discovery(processes, way, prompts, concurrency, samples)
                progress.advance(task)
                prompts = workload.prompts(prefixes, 2 * concurrency, draw)
                rounds[way] = measure_closed_loop(processes, way, prompts, concurrency, batch, samples)
                progress.advance(task)
    title = (
        f"{tokens} tokens, blocks of {block}, {shared:.0%} shared over {branches} branches, "
        f"{concurrency} waiting, {ranks} ranks\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    Console(width=120).print(show(samples, rounds, title))
    if out is not None:
        out.write_text(
            json.dumps({"title": title, "seconds": samples, "rounds per admitted request": rounds}, indent=1)
        )
    if figure is not None:
        draw_figure(figure, samples, title)


if __name__ == "__main__":
    typer.run(main)
