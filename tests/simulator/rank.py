"""One simulated rank: the real local state, cache and round actions over fake block contents."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.admission.ownership import ImmediateOwnership, LeaseOwnership
from wavepp_worker.runtime.admission.round_actions import LockstepActions, RoundActions
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.local_state import LocalState
from wavepp_worker.runtime.state.request_table import check_span

from tests.simulator.layers import Contents, Layers, make_layers


class Parking:
    """Stands in for the ``WaveGate``: the simulated LOOP looks at it before each wave."""

    parked = False

    def park(self, timeout: float) -> None:
        self.parked = True

    def resume(self) -> None:
        self.parked = False


@dataclass
class SimulatedRank:
    """The state of one rank between two events.

    Attributes:
        waves: arrived and not begun, in order.
        admitted: known to be admitted, maybe not materialised.
        executing: a wave runs.
        next_wave: its number must come next.
        speed: how many times slower it computes than rank 0.
        eager: how likely it materialises at an instant what no wave needs yet.
    """

    number: int
    state: LocalState
    actions: RoundActions
    parking: Parking
    contents: Contents
    layers: list[Layers]
    speed: float
    eager: float
    waves: deque[tuple[int, tuple[Span, ...]]] = field(default_factory=deque)
    admitted: deque[str] = field(default_factory=deque)
    executing: bool = False
    next_wave: int = 0

    def materialise(self, request_id: str) -> bool:
        local = self.state.requests.get(request_id)
        return local is not None and self.state.materialise(local)

    def ready(self, spans: Sequence[Span]) -> bool:
        """Whether the outcome that admitted every request of a wave has been applied here."""
        locals_ = [self.state.requests.get(span.request_id) for span in spans]
        return all(local is not None and local.endpoint is not None for local in locals_)

    def begin(self, wave_id: int, spans: Sequence[Span]) -> None:
        """Check what the real executor and the model rely on, and start writing the wave's blocks."""
        assert wave_id == self.next_wave, f"rank {self.number} got wave {wave_id}, {self.next_wave} is next"
        self.next_wave += 1
        for span in spans:
            local = self.state.requests.known(span.request_id)
            check_span(local, span)
            assert local.table is not None
            for layers in self.layers:
                layers.begin(local, span)
        self.executing = True

    def end(self, spans: Sequence[Span]) -> None:
        """The wave's blocks are complete."""
        self.executing = False
        for span in spans:
            local = self.state.requests.known(span.request_id)
            for layers in self.layers:
                layers.end(local, span)
            self.state.advance(local, span, (0.0,) * (self.number + 1))

    def check(self) -> None:
        """With nothing in flight: the books balance, nobody holds anything, and what is reusable is right."""
        self.state.cache.audit()
        self.contents.check(self.state.cache)
        known = self.state.requests.ids()
        assert not known, f"rank {self.number} still knows {known}"

    def take_room(self, name: str, tokens: int) -> bool:
        """Noise: hold room for a prompt that only this rank knows."""
        if self.state.cache.prepare(name, [], tokens, 0) is None:
            return False
        claimed = self.state.cache.materialise(name)
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
) -> list[SimulatedRank]:
    """One rank per list of windows."""
    ranks = []
    count = len(windows)
    for number, specs in enumerate(windows):
        blocks = min((spec.blocks for spec in specs if spec.kind != "recurrent"), default=0)
        config: Any = SimpleNamespace(
            rank=number,
            ranks=count,
            block_size=block,
            model_id="simulated",
            first=number == 0,
            last=number == count - 1,
            wait=5.0,
            headroom=min(2 * count * chunk // block, blocks // draw.choice((4, 32))),
        )
        events: Any = SimpleNamespace(send=lambda message: None)
        contents, parking = Contents(len(specs), random.Random(draw.random())), Parking()
        cache = RankCache(specs, block)
        state = LocalState(config, events, cache, contents)
        owns = LeaseOwnership(state) if ownership == "lease" else ImmediateOwnership(state)
        gate: Any = parking
        actions = LockstepActions(state, owns, gate) if admission == "lockstep" else RoundActions(state, owns)
        layers = make_layers(specs, block, contents)
        speed, eager = draw.choice((1.0, 1.0, 4.0)), draw.choice((0.5, 0.5, 0.02, 0.0))
        ranks.append(SimulatedRank(number, state, actions, parking, contents, layers, speed, eager))
    return ranks
