"""What happens to a world from outside: requests that arrive and are aborted, and what befalls one rank only."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from wavepp_worker import token_ids
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.simulator.setting import Setting

BURSTS = 0.3
"""How many of the scripts without a crowd are bursts."""


@dataclass(frozen=True)
class Noise:
    """A rank loses the room for so many tokens for a while."""

    at: float
    rank: int
    tokens: int


@dataclass(frozen=True)
class Eviction:
    """A rank loses what it keeps of a window, but for the first, second, ... blocks of a prompt in ``kept``."""

    at: float
    rank: int
    window: int
    kept: Collection[int]


@dataclass(frozen=True)
class Rivals:
    """Requests that one rank alone knows: it prepares them, lowers them as if others had less, and lets go.

    Attributes:
        prompts: token ids of each.
        steps: by how many tokens they are lowered, one step after the other.
    """

    at: float
    rank: int
    prompts: Sequence[Sequence[int]]
    steps: tuple[int, ...]


@dataclass
class Script:
    """Everything with the second at which it happens.

    Attributes:
        arrivals: requests.
        aborts: ids of requests.
        slowdown: when a rank becomes much slower than the others, if one does.
    """

    arrivals: list[tuple[float, PrefillRequest]] = field(default_factory=list)
    aborts: list[tuple[float, str]] = field(default_factory=list)
    noise: list[Noise] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    rivals: list[Rivals] = field(default_factory=list)
    slowdown: float | None = None

    def arrives(self, at: float, tokens: Sequence[int]) -> None:
        name = f"r{len(self.arrivals)}"
        self.arrivals.append((at, PrefillRequest(request_id=name, tokens=token_ids.pack(tokens))))

    def maybe_aborted(self, draw: random.Random, likely: float, within: float) -> None:
        """Abort the latest request so likely, mostly soon and always within so many seconds, now and then twice."""
        if draw.random() < likely:
            at, request = self.arrivals[-1]
            when = at + draw.random() ** 3 * within
            self.aborts += [(when, request.request_id)] * draw.choice((1, 1, 2))


def draw_script(draw: random.Random, setting: Setting) -> Script:
    """What the setting is made for, else a burst, or a few requests that share prefixes by chance."""
    if setting.crowd:
        return _crowd(draw, setting)
    if setting.slow:
        return _burst(draw, setting, gaps=(0.0, 0.005, 0.02, 0.04))
    if setting.riding:
        return _burst(draw, setting, gaps=(0.0, 0.0, 0.001), requests=range(6, 20), busy=True)
    if draw.random() < BURSTS:
        return _burst(draw, setting)
    script, longest = Script(), setting.longest
    prefixes = [[draw.randrange(50) for _ in range(longest)] for _ in range(2)]
    aborts, at = draw.choice((0.0, 0.2, 0.5)), 0.0
    for _ in range(draw.randrange(2, 9)):
        length = draw.randrange(1, longest + 1)
        shared = draw.randrange(length + 1) if draw.random() < 0.9 else 0
        tokens = draw.choice(prefixes)[:shared] + [draw.randrange(50) for _ in range(length - shared)]
        at += draw.choice((0.0, 0.0, 0.001, 0.05))
        script.arrives(at, tokens)
        script.maybe_aborted(draw, aborts, 0.3)
    for _ in range(draw.choice((0, 0, 2, 6))):
        rank = draw.randrange(len(setting.windows))
        script.noise.append(Noise(draw.random() * at, rank, draw.randrange(1, longest + 1)))
    return script


def _burst(
    draw: random.Random,
    setting: Setting,
    gaps: Sequence[float] = (0.0, 0.0, 0.0, 0.001, 0.01),
    requests: range = range(3, 10),
    *,
    busy: bool = False,
) -> Script:
    """Requests that come almost at once and extend each other, of prefixes nobody has; those who began give up.

    Args:
        gaps: seconds between two of them.
        requests: how many.
        busy: the ranks compute something else when they come.
    """
    script, longest = Script(), setting.longest
    if busy:
        script.arrives(0.0, [50] * longest)
    known = [
        [draw.randrange(50) for _ in range(draw.randrange(1, longest + 1))]
        for _ in range(draw.choice((1, 1, 2)))
    ]
    aborts, at = draw.choice((0.0, 0.3, 0.8)), 0.005 * busy
    for _ in range(draw.choice(requests)):
        begun = draw.choice(known)
        shared = len(begun) if draw.random() < 0.5 else draw.randrange(len(begun) + 1)
        extended = begun[:shared] + [draw.randrange(50) for _ in range(draw.randrange(longest + 1 - shared))]
        tokens = extended or begun
        known.append(tokens)
        at += draw.choice(gaps)
        script.arrives(at, tokens)
        script.maybe_aborted(draw, aborts, draw.choice((0.02, 0.2)))
    for _ in range(draw.choice((0, 0, 0, 2))):
        rank = draw.randrange(len(setting.windows))
        script.noise.append(Noise(draw.random() * (at + 0.05), rank, draw.randrange(1, longest + 1)))
    return script


def _crowd(draw: random.Random, setting: Setting) -> Script:
    """A prompt of which each rank keeps other parts; then many requests at once that begin like it."""
    script, longest, ranks = Script(slowdown=1.0), setting.longest, len(setting.windows)
    prompt = [draw.randrange(50) for _ in range(longest)]
    script.arrives(0.0, prompt)
    for rank, specs in enumerate(setting.windows):
        for window, spec in enumerate(specs):
            lost = {"full": 0.0, "sliding": draw.choice((0.0, 0.1)), "recurrent": draw.choice((0.4, 0.7))}
            kept = {at for at in range(1, longest + 1) if draw.random() >= lost[spec.kind]}
            script.evictions.append(Eviction(0.9, rank, window, kept))
    # While it is announced, the others arrive; while it runs, they are admitted.
    script.arrives(
        1.0 - 0.0001, [draw.randrange(50) for _ in range(draw.randrange(longest // 4, longest // 2))]
    )
    shared = [draw.randrange(longest // 2, longest - 1) for _ in range(draw.choice((1, 3)))]
    aborts = draw.choice((0.0, 0.4))
    for index in range(draw.randrange(3, 7)):
        script.arrives(
            1.0 + draw.choice((0.0, 0.0, 0.0, 0.003)),
            prompt[: draw.choice(shared)] + [50 + index] * draw.choice((1, 1, 2)),
        )
        script.maybe_aborted(draw, aborts, 0.1)
    for _ in range(draw.choice((0, 0, 1, 3))):
        rank = draw.randrange(ranks)
        script.noise.append(Noise(1.0 + 0.01 * draw.random(), rank, draw.randrange(1, longest + 1)))
    for rank in range(1, ranks):
        prompts = [prompt[: draw.choice(shared)] + [90 + at] * draw.choice((1, 1, 2)) for at in range(8)]
        steps = tuple(draw.randrange(1, 5) for _ in range(draw.choice((1, 2, 3))))
        script.rivals.append(Rivals(1.0 + 0.02 * draw.random(), rank, prompts, steps))
    return script
