"""Traces drawn from a seed: what a public trace has little of, in its format."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from bench.trace.file import TRACE_BLOCK, TraceRequest

Draw = Iterator[tuple[float, int, int | None]]
"""Requests without end: mean gaps between arrivals since the start, tokens, and the session it goes on with."""
BURST_REQUESTS = 8
"""Mean requests of a burst."""
SESSION_TURNS = 6
"""Mean turns of a session."""
LONGEST_SESSION = 120_000
"""Tokens from which on a session asks no more."""


def _uniform(draw: random.Random) -> Draw:
    now = 0.0
    while True:
        now += draw.expovariate(1)
        yield now, draw.randint(1_000, 60_000), None


def _heavy(draw: random.Random) -> Draw:
    now = 0.0
    while True:
        now += draw.expovariate(1)
        yield now, _lognormal(draw, 5_000, 1.3, 120_000), None


def _bursts(draw: random.Random) -> Draw:
    begun = 0.0
    while True:
        begun += draw.expovariate(1 / BURST_REQUESTS)
        now = begun
        for _ in range(1 + int(draw.expovariate(1 / (BURST_REQUESTS - 1)))):
            now += draw.expovariate(50)
            yield now, _lognormal(draw, 6_000, 1.0, 60_000), None


def _sessions(draw: random.Random) -> Draw:
    begun, session = 0.0, 0
    while True:
        begun += draw.expovariate(1 / SESSION_TURNS)
        session += 1
        now, tokens = begun, _lognormal(draw, 8_000, 1.0, 30_000)
        for _ in range(1 + int(draw.expovariate(1 / (SESSION_TURNS - 1)))):
            yield now, tokens, session
            now += 5 + draw.expovariate(1 / 15)
            tokens += _lognormal(draw, 3_000, 1.0, 30_000)
            if tokens > LONGEST_SESSION:
                break


def _lognormal(draw: random.Random, median: int, sigma: float, most: int) -> int:
    return max(64, min(most, int(draw.lognormvariate(math.log(median), sigma))))


KINDS: dict[str, Callable[[random.Random], Draw]] = {
    "uniform": _uniform,
    "heavy": _heavy,
    "bursts": _bursts,
    "sessions": _sessions,
}
"""Poisson arrivals of 1K to 60K tokens; of log-normal lengths; bursts of such; sessions that ask again with more."""


def generate(kind: str, requests: int, seed: int = 1) -> list[TraceRequest]:
    """The first ``requests`` of a kind in the order of their arrival, one a second on average."""
    drawn = KINDS[kind](random.Random(seed))
    # A session goes on after later ones have begun: drawn further, so that the last of them are not alone.
    ahead = sorted((next(drawn) for _ in range(2 * requests)), key=lambda request: request[0])[:requests]
    blocks: dict[int, list[int]] = {}
    made, ids = [], 0
    for at, tokens, session in ahead:
        hash_ids = [] if session is None else blocks.get(session, [])
        missing = -(-tokens // TRACE_BLOCK) - len(hash_ids)
        hash_ids = hash_ids + list(range(ids, ids + missing))
        ids += missing
        if session is not None:
            # What a prompt fills of its last block is not what the next prompt has there.
            blocks[session] = hash_ids[: tokens // TRACE_BLOCK]
        made.append(TraceRequest(timestamp=round(1000 * at), input_length=tokens, hash_ids=hash_ids))
    return made
