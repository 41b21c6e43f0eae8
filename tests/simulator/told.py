"""Scenarios with given prompts instead of drawn ones."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.messages import PrefillRequest

from tests.simulator.rank import SimulatedRank
from tests.simulator.world import World


class Told(World):
    """Prompts that arrive at given times (seconds, token ids); every wave takes 10 ms, more on slow ranks.

    Args:
        slow: by rank, how many times longer a wave takes there.
        round_delay: seconds added to every message of a round.
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
    ) -> None:
        self._prompts = prompts
        self._slow = slow or {}
        super().__init__(seed, ranks=ranks, spare=spare)
        self.round_delay = round_delay

    def _script(self, longest: int) -> None:
        for index, (at, tokens) in enumerate(self._prompts):
            packed = b"".join(token.to_bytes(4, "little") for token in tokens)
            request = PrefillRequest(request_id=f"r{index}", tokens=packed)
            self._at(at, self._command, lambda request=request: self._submit(request))

    def _seconds(self, rank: SimulatedRank) -> float:
        return 0.01 * self._slow.get(rank.number, 1.0)

    def abort_at(self, when: float, name: str) -> None:
        self._at(when, self._command, lambda: self._abort(name))

    def take_room_at(self, when: float, rank: int, name: str, tokens: int, until: float) -> None:
        """Room that is taken on one rank only, evicting what is there."""
        self._at(when, self.ranks[rank].take_room, name, tokens)
        self._at(until, lambda: self.ranks[rank].state.cache.release(name) and None)
