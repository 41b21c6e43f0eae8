"""What finding and claiming reusable cache costs: two walks of the tree against the hint index and leases.

``python -m bench.admission`` measures, for long prompts that share most of their prefix and against a tree
that another thread keeps changing: first every step by itself on one rank, whose tree changes without a
pause; then hint discovery and rounds between real processes, whose trees change once per ``--pause``. The
paper's figures are from another machine and another language: they say what the mechanism is for.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
import zmq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from wavepp_worker.cache.hashing import block_hashes
from wavepp_worker.runtime.admission import Outcome
from wavepp_worker.runtime.admission_queue import AdmissionQueue
from wavepp_worker.runtime.messages import PrefillRequest
from wavepp_worker.runtime.protocol import Plan
from wavepp_worker.runtime.round_planner import RoundPlanner
from wavepp_worker.runtime.rounds import LeaderRounds
from wavepp_worker.runtime.threads import LaneEnded, LaneScheduled, LaneStarted

from bench.cached_rank import (
    CHURN_BLOCKS,
    SEED,
    WAIT,
    CachedRank,
    Workload,
    first_walk,
    round_actions,
    run_follower,
)

T = TypeVar("T")
Samples = defaultdict[str, list[float]]

INDEX, WALKS = "hint index", "two walks"
PAPER = {
    "look-up: two walks (the first)": ("64.4 ms", ""),
    "look-up: hint index": ("24 µs", ""),
    "discovery: hint index": ("", "2.35 ms"),
}
"""What the paper reports (section 4.3) for 200K-token prompts at concurrency 64: median, p99."""


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


class Ranks:
    """Rank 0, and a process for every other rank; they run rounds until the end of the ``with`` block."""

    def __init__(self, workload: Workload, ranks: int, pause: float, two_walks: bool) -> None:
        self._stack = ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        addresses = [f"ipc://{directory}/{number}" for number in range(1, ranks)]
        spawn = multiprocessing.get_context("spawn")
        self._processes = [
            spawn.Process(
                target=run_follower, args=(number, workload, address, pause, two_walks), daemon=True
            )
            for number, address in enumerate(addresses, start=1)
        ]
        for process in self._processes:
            process.start()
        self._context: zmq.Context[Any] = zmq.Context()
        self._plane = LeaderRounds(self._context, addresses, WAIT)
        self.rank = self._stack.enter_context(CachedRank(0, workload, pause))
        self._actions = round_actions(self.rank, two_walks)
        self.rounds = 0

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.run(Plan(round_id=0, stop=True))
        self._stack.close()
        self._plane.close()
        self._context.term()
        for process in self._processes:
            process.join(WAIT if error is None else 0)
            if error is None and process.exitcode != 0:
                raise RuntimeError(f"a rank ended with {process.exitcode}")
            process.kill()

    def run(self, plan: Plan) -> Outcome:
        """One round, from the encoding of the plan to the outcome; its number is given here."""
        plan = msgspec.structs.replace(plan, round_id=self.rounds)
        outcome = self._actions.apply(plan, self._plane.run(plan, self._actions.vote))
        self.rounds += 1
        self.rank.admitted.extend(admit.request_id for admit in outcome.admitted)
        return outcome


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


def show(samples: Samples, rounds: dict[str, float], title: str) -> Table:
    table = Table("step", "median", "p99", "samples", "paper median", "paper p99", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in samples.items():
        table.add_row(
            name,
            duration(statistics.median(values)),
            duration(percentile(values, 0.99)) if len(values) >= 20 else "",
            str(len(values)),
            *PAPER.get(name, ("", "")),
        )
    for name, value in rounds.items():
        table.add_row(f"rounds per admitted request: {name}", f"{value:.2f}", "", "", "", "")
    return table


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def duration(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def draw_figure(path: Path, samples: Samples, title: str) -> None:
    """Median (bar) and p99 (line) of the steps that both ways have, on a logarithmic scale."""
    from matplotlib.figure import Figure

    pairs = [
        ("one look-up", f"look-up: {INDEX}", "look-up: two walks (the first)"),
        ("all that wait", f"look-up of all that wait: {INDEX}", f"look-up of all that wait: {WALKS}"),
        ("discovery", f"discovery: {INDEX}", f"discovery: {WALKS}"),
        (
            "discovery between\nadmissions",
            *(f"discovery between admissions: {way}" for way in (INDEX, WALKS)),
        ),
    ]
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for number, (label, colour) in enumerate([(INDEX, "tab:blue"), (WALKS, "tab:orange")]):
        values = [[1000 * value for value in samples[names[number]]] for _, *names in pairs]
        places = [at + 0.38 * (number - 0.5) for at in range(len(pairs))]
        medians = [statistics.median(group) for group in values]
        axes.bar(places, medians, 0.36, label=label, color=colour)
        axes.vlines(places, medians, [percentile(group, 0.99) for group in values], color="black")
    axes.set_xticks(range(len(pairs)), [label for label, *_ in pairs])
    axes.set_yscale("log")
    axes.set_ylabel("ms: median, line to p99")
    axes.set_title(title, fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)


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
