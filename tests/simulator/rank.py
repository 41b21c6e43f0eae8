"""One simulated rank: production's books and turns over fake block contents and a fake device."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.virtual_device import Ending
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.rounds import Plan, Tally
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.device_queue import DeviceQueue
from wavepp_worker.runtime.rank.loop_turn import FollowerLoop
from wavepp_worker.runtime.rank.parts import RankParts, make_parts
from wavepp_worker.runtime.rank.wave_turn import FollowerWave
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.timeline import OFF

from tests.simulator.layers import Contents, Layers, make_layers

FOR_EVER = 1e6
"""Seconds that a turn may wait for a message: here, what never comes shows as a hang instead."""


class SimulatedGate:
    """Implements ``Gate``: the simulated LOOP looks at it before each wave."""

    parked = False

    def park(self) -> None:
        self.parked = True

    def resume(self) -> None:
        self.parked = False


@dataclass
class Events:
    """What a rank told the engine and the engine has not read."""

    told: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.told.append(message)

    def take(self) -> list[Message]:
        taken, self.told = self.told, []
        return taken


@dataclass
class SimulatedRank:
    """The state of one rank between two events.

    Attributes:
        wave: its WAVE thread; None on rank 0, whose turns the world takes.
        loop: its LOOP thread; likewise.
        device: the waves on its device, where that runs behind the host.
        behind: whether it does; otherwise the host computes, and its LOOP does nothing else meanwhile.
        outcomes: of each round, as this rank applied it.
        waves: arrived, and not taken by the LOOP, in order; with the time their activations are there.
        admitted: told to the LOOP, and not taken.
        busy: the LOOP may have more to do at once.
        executing: the host computes a wave.
        device_free: when the device has nothing to do.
        speed: how many times slower it computes than rank 0.
        eager: how likely it materialises at an instant what no wave needs yet.
    """

    number: int
    parts: RankParts
    wave: FollowerWave | None
    loop: FollowerLoop | None
    gate: SimulatedGate
    events: Events
    contents: Contents
    layers: list[Layers]
    device: DeviceQueue
    behind: bool
    speed: float
    eager: float
    outcomes: dict[int, RoundOutcome] = field(default_factory=dict)
    waves: deque[tuple[WaveHeader, float]] = field(default_factory=deque)
    admitted: list[str] = field(default_factory=list)
    busy: bool = False
    executing: bool = False
    device_free: float = 0.0

    def __post_init__(self) -> None:
        """Remember every outcome that this rank applies."""
        apply = self.parts.actions.apply

        def remembered(plan: Plan, tally: Tally) -> RoundOutcome:
            self.outcomes[plan.round_id] = apply(plan, tally)
            return self.outcomes[plan.round_id]

        self.parts.actions.apply = remembered  # type: ignore[method-assign]

    def begin(self, header: WaveHeader) -> list[LocalRequest]:
        """What the executor does before the forward, what the model relies on, and the first write of its blocks."""
        locals_ = self.parts.order.begin(header)
        for local, span in zip(locals_, header.spans, strict=True):
            assert local.table is not None
            for layers in self.layers:
                layers.begin(local, span)
        return locals_

    def end(self, header: WaveHeader, locals_: Sequence[LocalRequest]) -> None:
        """The wave's blocks are complete, as far as anybody can tell who reads them after it."""
        for local, span in zip(locals_, header.spans, strict=True):
            for layers in self.layers:
                layers.end(local, span)
        self.parts.order.end(locals_, header.spans, (0.0,) * (self.number + 1))

    def launch(self, seconds: float, ready: float, now: float) -> float:
        """Queue a wave on the device, whose activations are there at ``ready``; returns when it ends."""
        self.device_free = max(now, ready, self.device_free) + seconds
        self.device.launched(Ending(round(1e9 * self.device_free)))
        return self.device_free

    def check(self) -> None:
        """With nothing in flight: the books balance, nobody holds anything, and what is reusable is right."""
        self.parts.cache.audit()
        self.contents.check(self.parts.cache)
        known = self.parts.requests.ids()
        assert not known, f"rank {self.number} still knows {known}"

    def take_room(self, name: str, tokens: int) -> bool:
        """Noise: hold room for a prompt that only this rank knows."""
        cache = self.parts.cache
        if cache.prepare(name, [], tokens, 0) is None:
            return False
        claimed = cache.materialise(name)
        self.contents.run(claimed.moves)
        for number, table in enumerate(claimed.tables):
            states = [claimed.states[number], *claimed.snapshots[number].values()]
            device = self.contents.device(number)
            for block in (*table, *states):
                device[block] = "noise"
        return True


def draw_windows(
    draw: random.Random, kinds: str, block: int, longest: int, spare: int = 0
) -> list[WindowSpec]:
    """One window per letter, each big enough for the longest prompt alone: full, sliding or recurrent."""
    least = -(-longest // block)
    specs = []
    for kind in kinds:
        host, disk = draw.choice((0, 0, 2, least)), draw.choice((0, 0, 0, 2, least))
        if kind == "r":
            blocks = draw.choice((1, 2, 3, 4, 8)) + spare
            interval = block * draw.choice((1, 1, 2, 3))
            most = draw.choice((None, None, 1, 2))
            specs.append(WindowSpec("recurrent", "recurrent", blocks, host, disk, 0, interval, most))
            continue
        blocks = least + spare + draw.choice((0, 1, 3, least, 2 * least))
        span = draw.choice((1, block + 1, longest // 2)) if kind == "s" else 0
        specs.append(WindowSpec("attention", "sliding" if span else "full", blocks, host, disk, span))
    return specs


def make_ranks(
    draw: random.Random,
    windows: Sequence[Sequence[WindowSpec]],
    block: int,
    chunk: int,
    admission: str,
    ownership: str,
    clock_ns: Callable[[], int],
) -> list[SimulatedRank]:
    """One rank per list of windows; all devices run behind their hosts, or none does."""
    ranks = []
    count = len(windows)
    behind = draw.random() < 0.4
    for number, specs in enumerate(windows):
        blocks = min((spec.blocks for spec in specs if spec.kind != "recurrent"), default=0)
        contents, gate, events = Contents(len(specs), random.Random(draw.random())), SimulatedGate(), Events()
        parts = make_parts(
            RankCache(specs, block),
            contents,
            events,
            rank=number,
            model_id="simulated",
            headroom_blocks=min(2 * count * chunk // block, blocks // draw.choice((4, 32))),
            leases=ownership == "lease",
            gate=gate if admission == "lockstep" else None,
        )
        ranks.append(
            SimulatedRank(
                number=number,
                parts=parts,
                wave=FollowerWave(parts.actions, parts.reports, FOR_EVER) if number else None,
                loop=FollowerLoop(parts.order, OFF, FOR_EVER) if number else None,
                gate=gate,
                events=events,
                contents=contents,
                layers=make_layers(specs, block, contents),
                device=DeviceQueue(clock_ns),
                behind=behind,
                speed=draw.choice((1.0, 1.0, 4.0)),
                eager=draw.choice((0.5, 0.5, 0.02, 0.0)),
            )
        )
    return ranks
