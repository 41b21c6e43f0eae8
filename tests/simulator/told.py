"""Scenarios with given prompts instead of drawn ones."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.protocol.waves import Span

from tests.simulator.rank import SimulatedRank
from tests.simulator.script import Script
from tests.simulator.setting import Setting, draw_setting
from tests.simulator.world import World


class Told(World):
    """Prompts that arrive at given times (seconds, token ids); every wave takes 10 ms, more on slow ranks.

    Args:
        slow: by rank, how many times longer a wave takes there.
        round_delay: seconds added to every message of a round.
        windows: by rank; one of full attention on each if not given.
        block: tokens per block; drawn if not given.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[float, Sequence[int]]],
        seed: int,
        ranks: int,
        *,
        spare: int = 0,
        round_delay: float = 0.0,
        slow: dict[int, float] | None = None,
        windows: Sequence[list[WindowSpec]] | None = None,
        block: int | None = None,
    ) -> None:
        self._prompts = prompts
        self._slow = slow or {}
        self._given = windows
        self._round_delay = round_delay
        super().__init__(seed, ranks=ranks, spare=spare, block=block)
        self.trace = deque()

    def _setting(self, ranks: int | None, block: int | None, spare: int) -> Setting:
        setting = draw_setting(self.draw, ranks, block, spare, ("f",))
        windows = setting.windows if self._given is None else list(self._given)
        return replace(setting, windows=windows, round_delay=self._round_delay, beat=math.inf)

    def _script(self) -> Script:
        script = Script()
        for at, tokens in self._prompts:
            script.arrives(at, tokens)
        return script

    def _clears(self, draw: random.Random, script: Script) -> list[float]:
        return []

    def clear_at(self, when: float, number: int = 0) -> None:
        """What nobody holds then is forgotten, by all ranks in one round."""
        self._at(when, self._clear, number)

    def _seconds(self, rank: SimulatedRank) -> float:
        return 0.01 * self._slow.get(rank.number, 1.0)

    def waves(self) -> list[tuple[int, int, tuple[Span, ...]]]:
        """``(rank, wave, spans)`` in the order they began."""
        return [event[1:] for event in self.trace if len(event) == 4]

    def starts(self, name: str) -> list[int]:
        """Tokens at which waves found a request, in order; the first is its endpoint."""
        spans = (span for _, _, spans in self.waves() for span in spans)
        return [span.start for span in spans if span.request_id == name]

    def asked(self, name: str) -> list[int]:
        """Endpoints at which the ranks were asked to commit a request, in order."""
        plans = (event[1] for event in self.trace if len(event) == 2)
        asked = (admit for plan in plans for admit in (*plan.prepare, *plan.reconcile))
        return [admit.endpoint for admit in asked if admit.request_id == name]

    def abort_at(self, when: float, name: str) -> None:
        self._at(when, self._abort, name)

    def take_room_at(self, when: float, rank: int, name: str, tokens: int, until: float) -> None:
        """Room that is taken on one rank only, evicting what is there."""
        self._at(when, self.ranks[rank].take_room, name, tokens)
        self._at(until, lambda: self.ranks[rank].parts.cache.release(name) and None)

    def evict_at(self, when: float, rank: int, window: int, kept: Collection[int]) -> None:
        """On one rank in one window, what is reusable, but for the first, second, ... blocks in ``kept``."""
        self._at(when, self.ranks[rank].evict, window, kept)
