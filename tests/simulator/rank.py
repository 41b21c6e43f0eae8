"""One simulated rank: the real local state, cache and round actions over fake block contents."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from wavepp_worker.cache.moves import Move
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.local_state import LocalState
from wavepp_worker.runtime.ownership import ImmediateOwnership, LeaseOwnership
from wavepp_worker.runtime.protocol import Span
from wavepp_worker.runtime.requests import check_span
from wavepp_worker.runtime.round_actions import LockstepActions, RoundActions


class Contents:
    """What every block of every tier holds: the key it was computed for, or the write that is under way."""

    def __init__(self) -> None:
        self._tiers: dict[int, dict[int, Any]] = {0: {}, 1: {}, 2: {}}

    def run(self, moves: Sequence[Move]) -> None:
        for move in moves:
            found = self._tiers[move.source[0]].get(move.source[1])
            assert found == move.key, f"{move} copies {found}"
            self._tiers[move.target[0]][move.target[1]] = found

    def read(self, block: int) -> Any:
        return self._tiers[0].get(block)

    def write(self, block: int, content: Any) -> None:
        self._tiers[0][block] = content


class Parking:
    """Stands in for the scheduling boundary: the simulated LOOP looks at it before each wave."""

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
    """

    number: int
    state: LocalState
    actions: RoundActions
    parking: Parking
    contents: Contents
    speed: float
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
        block = self.state.config.block
        for span in spans:
            local = self.state.requests.known(span.request_id)
            check_span(local, span)
            assert local.table is not None
            table = local.table.tolist()
            assert len(set(table)) == len(table), f"rank {self.number}: {span.request_id} has a block twice"
            for at in range(span.start // block):
                assert self.contents.read(table[at]) == local.keys[at], (
                    f"rank {self.number} runs {span} over the wrong content in block {at}"
                )
            for at in self._written(span):
                self.contents.write(table[at], (span.request_id, at))
        self.executing = True

    def end(self, spans: Sequence[Span]) -> None:
        """The wave's blocks are complete, unless someone else wrote to them meanwhile."""
        self.executing = False
        block = self.state.config.block
        for span in spans:
            local = self.state.requests.known(span.request_id)
            assert local.table is not None
            for at in self._written(span):
                written = self.contents.read(int(local.table[at]))
                assert written == (span.request_id, at), (
                    f"rank {self.number}: {span} was overwritten by {written}"
                )
                if (at + 1) * block <= span.start + span.length:
                    self.contents.write(int(local.table[at]), local.keys[at])
            self.state.advance(local, span, (0.0,) * (self.number + 1))

    def take_room(self, name: str, tokens: int) -> bool:
        """Noise: hold room for a prompt that only this rank knows."""
        if self.state.cache.prepare(name, [], tokens, 0) is None:
            return False
        claimed = self.state.cache.materialise(name)
        self.contents.run(claimed.moves)
        for block in claimed.tables[0]:
            self.contents.write(block, "noise")
        return True

    def _written(self, span: Span) -> range:
        block = self.state.config.block
        return range(span.start // block, -(-(span.start + span.length) // block))


def make_ranks(
    draw: random.Random,
    count: int,
    block: int,
    chunk: int,
    longest: int,
    admission: str,
    ownership: str,
    spare: int,
) -> list[SimulatedRank]:
    """Ranks with unequal pools, each big enough for the longest prompt alone."""
    least = -(-longest // block)
    ranks = []
    for number in range(count):
        blocks = least + spare + draw.choice((0, 1, 3, least, 2 * least))
        config: Any = SimpleNamespace(
            rank=number,
            ranks=count,
            block=block,
            model_id="simulated",
            first=number == 0,
            last=number == count - 1,
            wait=5.0,
            headroom=min(2 * count * chunk // block, blocks // draw.choice((4, 32))),
        )
        events: Any = SimpleNamespace(send=lambda message: None)
        window = WindowSpec("attention", "full", blocks, host_blocks=draw.choice((0, 0, 2, least)))
        contents, parking = Contents(), Parking()
        state = LocalState(config, events, RankCache([window], block), contents)
        owns = LeaseOwnership(state) if ownership == "lease" else ImmediateOwnership(state)
        boundary: Any = parking
        actions = (
            LockstepActions(state, owns, boundary) if admission == "lockstep" else RoundActions(state, owns)
        )
        ranks.append(SimulatedRank(number, state, actions, parking, contents, draw.choice((1.0, 1.0, 4.0))))
    return ranks
