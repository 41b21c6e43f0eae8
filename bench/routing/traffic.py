"""What the replicas of a graph are asked, the same for every way of choosing one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from wavepp_worker import token_ids

from bench.routing.replica import LONGEST, TOKEN_IDS, WAVE_TOKENS, replica_cost
from bench.trace.file import rate_for_load, read_trace

PREFIX, OWN = 2048, 256
"""Tokens of a shared prefix, and of each request's own behind it."""
CLIENTS = 4
"""Of each replica, in a closed loop."""
SCALE = 8
"""A prompt of a trace is that many times as long as the one that is asked."""


@dataclass(frozen=True)
class Workload:
    """Prompts in the order in which they are sent.

    Attributes:
        name: for tables.
        prompts: token ids.
        clients: of a closed loop, each of which sends the next prompt when its last is answered; 0 of an open one.
        at: seconds from the start at which each prompt of an open loop is sent.
    """

    name: str
    prompts: list[list[int]]
    clients: int = 0
    at: tuple[float, ...] = ()


def shared(prefixes: int, requests: int, replicas: int, seed: int = 0) -> Workload:
    """Each request begins with one of ``prefixes``, drawn at random; with 0, all are of the same length and new."""
    draw = random.Random(f"{prefixes} {seed}")

    def tokens(count: int) -> list[int]:
        return draw.choices(TOKEN_IDS, k=count)

    known = [tokens(PREFIX) for _ in range(prefixes)]
    prompts = [(draw.choice(known) if known else tokens(PREFIX)) + tokens(OWN) for _ in range(requests)]
    return Workload(f"{prefixes} prefixes" if prefixes else "nothing shared", prompts, CLIENTS * replicas)


def replayed(trace: Path, requests: int, replicas: int, load: float) -> Workload:
    """The first requests of a trace, ``SCALE`` times shorter, as fast as keeps the replicas busy for ``load``.

    That is with all the reuse that one cache without bounds would have. Prompts that are too long even so are left out.
    """
    asked = [each for each in read_trace(trace, requests) if each.input_length // SCALE < LONGEST]
    rate = rate_for_load(asked, load * replicas, replica_cost(SCALE), SCALE * WAVE_TOKENS)
    begun = asked[0].timestamp
    span = len(TOKEN_IDS)
    return Workload(
        f"{trace.stem}, {load:.0%} load",
        [(token_ids.unpack(each.tokens(span, SCALE)) + TOKEN_IDS.start).tolist() for each in asked],
        at=tuple((each.timestamp - begun) / 1000 / rate for each in asked),
    )


def probes(workloads: list[Workload], requests: int, seed: int = 0) -> list[list[int]]:
    """Prompts for an idle graph: beginnings of earlier ones, of any length, with a new end; some wholly new.

    Half of those that begin as another begin as an earlier probe, so that much of them is surely cached somewhere.
    """
    draw = random.Random(seed)
    known = [prompt for workload in workloads for prompt in workload.prompts]
    made: list[list[int]] = []
    for _ in range(requests):
        prompt = draw.choice(made if made and draw.random() < 0.5 else known)
        kept = draw.choice((0, draw.randrange(len(prompt)), len(prompt)))
        made.append([*prompt[: min(kept, LONGEST // 2)], *draw.choices(TOKEN_IDS, k=draw.randint(1, OWN))])
    return made
