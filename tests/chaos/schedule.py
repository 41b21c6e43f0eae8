"""Which faults are injected when: a function of a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.chaos.faults import LASTING, Fault, Kind, Role

SHORTEST_PAUSE, LONGEST_PAUSE = 6.0, 18.0
"""Seconds between two faults; a restart takes about as long, so faults meet processes in every state."""
CALM_SECONDS, CALM_EVERY = 40.0, 6
"""After so many faults nothing happens for so long: errors in it have no excuse."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds that a lasting fault lasts."""


def draw_schedule(seed: int, seconds: float, faults: Sequence[tuple[Kind, Role]]) -> list[Fault]:
    """Faults in order of time, the last early enough that it is over by ``seconds``.

    Every fault of ``faults`` comes once before one comes again.
    """
    draw = random.Random(seed)
    deck = _deck(draw, faults)
    schedule: list[Fault] = []
    now = draw.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)
    while True:
        kind, role = next(deck)
        lasts = round(draw.uniform(SHORTEST, LONGEST), 1) if kind in LASTING else 0.0
        if now + lasts > seconds:
            return schedule
        schedule.append(Fault(round(now, 2), kind, role, round(draw.random(), 4), lasts))
        now += draw.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)
        if len(schedule) % CALM_EVERY == 0:
            now = max(now, *(each.at + each.seconds for each in schedule)) + CALM_SECONDS


def _deck(draw: random.Random, faults: Sequence[tuple[Kind, Role]]) -> Iterator[tuple[Kind, Role]]:
    while True:
        yield from draw.sample(faults, len(faults))
