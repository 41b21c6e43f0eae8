"""What a world is like: how many ranks, what their layers keep, how fast they are."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass

from wavepp_worker.cache.window_spec import WindowSpec

CROWDED = 0.1
"""Share of the worlds in which many requests go down to lower endpoints at once."""
HYBRIDS = ("f", "fs", "fr", "fr", "rf", "fsr", "sr", "r", "")
"""Window kinds of the ranks in half of the other worlds: full, sliding, recurrent; none for layers without a cache."""
CROWDED_HYBRIDS = ("fr", "sr", "sr", "frs")
SLOW = 0.06
"""Share of the others in which prompts take many waves, so that requests come while one they share with is computed."""
RIDING = 0.15
"""Share of the worlds in which waves have room for those who read what they compute."""
SLOW_HYBRIDS = ("fr", "fr", "rf", "fsr", "r")


@dataclass(frozen=True)
class Setting:
    """What does not change.

    Attributes:
        windows: by rank.
        block_size: tokens per block.
        chunk: most tokens of a wave.
        longest: most tokens of a prompt.
        limit: requests that may hold leases at once.
        headroom: share of a pool that is left to others at most.
        delay: most seconds of a message.
        round_delay: seconds by which messages of rounds are slower than others.
        compute: most seconds of a wave.
        beat: seconds between two heartbeats; infinity for none.
        crowd: whether it is made for a crowd.
        slow: whether it is made for requests that come while one they share with is computed.
        riding: whether it is made for requests that share a wave with whom they read from.
    """

    windows: list[list[WindowSpec]]
    block_size: int
    chunk: int
    longest: int
    limit: int
    headroom: float
    delay: float
    compute: float
    round_delay: float = 0.0
    beat: float = math.inf
    crowd: bool = False
    slow: bool = False
    riding: bool = False


def draw_setting(
    draw: random.Random,
    ranks: int | None,
    block_size: int | None,
    spare: int,
    hybrids: tuple[str, ...] | None,
) -> Setting:
    """Anything but for what is given; ``spare`` blocks are added to every pool."""
    count = ranks or draw.choice((1, 2, 2, 3, 3, 4, 5, 8))
    block_size = block_size or draw.choice((1, 2, 4))
    longest = draw.choice((6, 12, 20))
    hybrids = hybrids or (HYBRIDS if draw.random() < 0.5 else ("f",))
    windows = [draw_windows(draw, draw.choice(hybrids), block_size, longest, spare) for _ in range(count)]
    chunk, limit = draw.choice((2, 3, 8, 16)), draw.choice((1, 2, 4, 8))
    return Setting(
        windows=[[_set_aside(draw, spec, block_size, chunk, limit) for spec in specs] for specs in windows],
        block_size=block_size,
        chunk=chunk,
        longest=longest,
        limit=limit,
        headroom=draw.choice((1 / 4, 1 / 32)),
        delay=draw.choice((0.0001, 0.001, 0.02)),
        compute=draw.choice((0.0001, 0.002, 0.01)),
        round_delay=draw.choice((0.0, 0.0, 0.0, 0.0, 0.01)),
        beat=draw.choice((0.05, 0.5)) if draw.random() < 0.1 else math.inf,
    )


def draw_crowded_setting(draw: random.Random, ranks: int | None) -> Setting:
    """Room for many requests on the first rank, and on each of the others one window with hardly enough for them."""
    longest = 20
    windows = []
    for rank in range(ranks or draw.choice((2, 3, 3, 4))):
        kinds = draw.choice(CROWDED_HYBRIDS)
        tight = "s" if "s" in kinds and draw.random() < 0.7 else draw.choice(kinds)
        windows.append([_crowded_window(draw, kind, bool(rank) and kind == tight, longest) for kind in kinds])
    return Setting(
        windows=windows,
        block_size=1,
        chunk=draw.choice((3, 8)),
        longest=longest,
        limit=draw.choice((4, 8, 16)),
        headroom=0.0,
        delay=draw.choice((0.001, 0.005)),
        compute=0.01,
        crowd=True,
    )


def draw_slow_setting(draw: random.Random, ranks: int | None) -> Setting:
    """Waves of few tokens; snapshots far between, and of some ranks hardly room for more than one."""
    longest, block_size = 40, draw.choice((1, 2))
    windows = []
    for _ in range(ranks or draw.choice((1, 2, 3, 4))):
        specs = []
        for kind in draw.choice(SLOW_HYBRIDS):
            host, disk = draw.choice((0, 0, 2)), draw.choice((0, 0, 0, 2))
            if kind == "r":
                blocks, interval = draw.choice((2, 3, 4, 6, 12)), block_size * draw.choice((3, 7, 50))
                specs.append(WindowSpec("recurrent", "recurrent", blocks, host, disk, 0, interval))
            else:
                blocks, span = 2 * longest // block_size + draw.choice((0, longest)), 5 * (kind == "s")
                specs.append(WindowSpec("attention", "sliding" if span else "full", blocks, host, disk, span))
        windows.append(specs)
    return Setting(
        windows=windows,
        block_size=block_size,
        chunk=draw.choice((1, 2, 3)),
        longest=longest,
        limit=draw.choice((2, 4, 8)),
        headroom=1 / 32,
        delay=draw.choice((0.0001, 0.001)),
        compute=0.01,
        slow=True,
    )


def draw_riding_setting(draw: random.Random, ranks: int | None) -> Setting:
    """Attention to all tokens, and long waves: most of a burst is admitted before there is room in the ring."""
    longest, block_size = 20, draw.choice((1, 1, 2))
    count = ranks or draw.choice((1, 1, 2, 3, 4))
    return Setting(
        windows=[
            draw_windows(draw, "f", block_size, longest, longest * draw.choice((1, 3, 6)))
            for _ in range(count)
        ],
        block_size=block_size,
        chunk=draw.choice((16, 30, 60, 200)),
        longest=longest,
        limit=draw.choice((4, 8, 16)),
        headroom=1 / 32,
        delay=0.0001,
        compute=0.1,
        riding=True,
    )


def draw_windows(
    draw: random.Random, kinds: str, block_size: int, longest: int, spare: int = 0
) -> list[WindowSpec]:
    """One window per letter, each big enough for the longest prompt alone: full, sliding or recurrent."""
    least = -(-longest // block_size)
    specs = []
    for kind in kinds:
        host, disk = draw.choice((0, 0, 2, least)), draw.choice((0, 0, 0, 2, least))
        if kind == "r":
            blocks = draw.choice((1, 2, 3, 4, 8)) + spare
            interval = block_size * draw.choice((1, 1, 2, 3))
            most = draw.choice((None, None, 1, 2))
            specs.append(WindowSpec("recurrent", "recurrent", blocks, host, disk, 0, interval, most))
            continue
        blocks = least + spare + draw.choice((0, 1, 3, least, 2 * least))
        span = draw.choice((1, block_size + 1, longest // 2)) if kind == "s" else 0
        specs.append(WindowSpec("attention", "sliding" if span else "full", blocks, host, disk, span))
    return specs


def _set_aside(draw: random.Random, spec: WindowSpec, block_size: int, chunk: int, limit: int) -> WindowSpec:
    """A window that slides may set blocks aside for a wave, and have hardly enough of them for one request."""
    window, wave = -(-spec.span // block_size), chunk // block_size + limit
    alone = 2 * window + 1 + wave
    if spec.kind != "sliding" or draw.random() < 0.3:
        return spec
    return dataclasses.replace(spec, wave=wave, blocks=alone + draw.choice((0, 1, window, 3 * window + wave)))


def _crowded_window(draw: random.Random, kind: str, tight: bool, longest: int) -> WindowSpec:
    host, disk = draw.choice((0, 0, 4, 8)), draw.choice((0, 0, 0, 8))
    if kind == "r":
        blocks = longest + 2 + (draw.choice((0, 2, 4)) if tight else 20)
        return WindowSpec("recurrent", "recurrent", blocks, host, disk, 0, draw.choice((1, 2)))
    blocks = longest + (draw.choice((0, 1, 2)) if tight else 30)
    if kind == "s":
        return WindowSpec("sliding", "sliding", blocks, host, disk, draw.choice((3, 6, 9)))
    return WindowSpec("attention", "full", blocks, host, disk)
