"""What the ranks of a replica did while it served a cell: their timelines, and the CPU time of every thread."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any

from wavepp_worker import EngineConfig, PrefillEngine, token_ids

from bench.common.closed_loop import LoopFigures, closed_loop
from bench.vllm.cells import Traffic

LOOP_PARTS = {
    "forward": "forward",
    "receive": "waits for the neighbour",
    "wait": "waits for work",
    "wait for admission": "waits for admission",
    "plan": "plan",
    "materialise": "materialise",
    "publish": "publish",
    "send": "send",
    "answer": "sample, answer",
}
"""What a LOOP thread does, by the names of its slices; the rest of its time is messages and turns."""
PROFILE_SECONDS = 600.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class RankTime:
    """One rank; seconds of the time that was measured.

    Attributes:
        loop: by part of the LOOP thread's work, as in ``LOOP_PARTS``.
        cpu: by kind of thread.
        spans: ``[start, length, last]`` of each chunk of the wave of the median size.
    """

    waves: int = 0
    loop: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[int, int, bool]] = field(default_factory=list)


@dataclass
class Served:
    """A cell that was served: its figures, its ranks, and CPU seconds of the process that asked."""

    figures: LoopFigures
    ranks: list[RankTime]
    client_cpu: float


def serve(config: EngineConfig, traffic: Traffic) -> Served:
    """Serve a cell, the first clients' requests untimed, and say what the ranks did meanwhile."""
    warm = len(traffic.prompts) // 4
    with PrefillEngine(config) as engine, tempfile.TemporaryDirectory() as directory:
        for prompt in traffic.known:
            engine.prefill(prompt)
        closed_loop(engine, map(token_ids.pack, traffic.prompts[:warm]), traffic.clients, "untimed")
        path = engine.start_profile(Path(directory) / "profile.json", PROFILE_SECONDS)
        before, asked = [_cpu(pid) for pid in engine.rank_pids], time.process_time()
        figures = closed_loop(engine, map(token_ids.pack, traffic.prompts[warm:]), traffic.clients, "timed")
        client = time.process_time() - asked
        after = [_cpu(pid) for pid in engine.rank_pids]
        engine.stop_profile()
        ranks = times_of(json.loads(path.read_text())["traceEvents"], config.pp, figures.seconds, traffic)
    for rank, was, now in zip(ranks, before, after, strict=True):
        rank.cpu = {name: now[name] - was.get(name, 0.0) for name in now}
    return Served(figures, ranks, client)


def _cpu(pid: int) -> dict[str, float]:
    """CPU seconds so far by kind of thread: the main one executes, ZeroMQ's move bytes, all others admit or help."""
    found: dict[str, float] = defaultdict(float)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        head, _, rest = (thread / "stat").read_text().rpartition(")")
        kind = "LOOP" if int(thread.name) == pid else "ZeroMQ" if "ZMQ" in head else "WAVE, helpers"
        found[kind] += sum(map(int, rest.split()[11:13])) / TICKS
    return found


def times_of(
    events: Sequence[dict[str, Any]], count: int, seconds: float, traffic: Traffic
) -> list[RankTime]:
    """What each of ``count`` ranks did by a timeline's events, in ``seconds`` that were measured."""
    ranks = [RankTime() for _ in range(count)]
    waves: list[list[tuple[tuple[int, int], dict[str, Any]]]] = [[] for _ in range(count)]
    lengths = {f"timed-{number}": len(prompt) for number, prompt in enumerate(traffic.prompts)}
    slices = [each for each in events if each["ph"] == "X" and each["cat"] in ("loop", "answers")]
    # The first wait began before anybody asked.
    first = min((each["ts"] for each in slices if "spans" in each["args"]), default=0.0)
    for event in slices:
        if event["ts"] < first:
            continue
        rank = ranks[event["pid"] - 1]
        name = "forward" if "spans" in event["args"] else event["name"]
        if name in LOOP_PARTS:
            rank.loop[LOOP_PARTS[name]] += event["dur"] / 1e6
        if name == "forward":
            rank.waves += 1
            waves[event["pid"] - 1].append((_size(event["args"]), event["args"]))
    for rank, those in zip(ranks, waves, strict=True):
        rank.loop["messages, turns"] = max(0.0, seconds - sum(rank.loop.values()))
        if not those:
            continue
        chosen = _median(those)
        for span, request in zip(chosen["spans"], chosen["requests"], strict=True):
            start, end = map(int, span.split(" to "))
            # Ranks know a request by its name and a number.
            rank.spans.append((start, end - start, end == lengths.get(request.rpartition("-")[0], end)))
    return ranks


def _size(wave: dict[str, Any]) -> tuple[int, int]:
    """Its tokens, and how many pairs of a token and one that it sees."""
    spans = [tuple(map(int, span.split(" to "))) for span in wave["spans"]]
    return wave["tokens"], sum((end * (end + 1) - start * (start + 1)) // 2 for start, end in spans)


def _median(waves: Sequence[tuple[tuple[int, int], dict[str, Any]]]) -> dict[str, Any]:
    """Of the waves with the median number of tokens, that which sees the median number before."""
    tokens = median_low(size for (size, _), _ in waves)
    alike = sorted((each for each in waves if each[0][0] == tokens), key=lambda each: each[0][1])
    return alike[(len(alike) - 1) // 2][1]
