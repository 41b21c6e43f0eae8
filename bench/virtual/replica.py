"""A replica in one process on a virtual clock: production code around virtual devices, for big sweeps.

Prompts, hashes, trees, leases, escrow, rounds, messages' encoding, lanes and planners are the production code of every
rank; sockets, threads and devices are not. A device takes what the cost model says. Host code takes its CPU time
measured here, where each rank has one core and its WAVE and LOOP share one interpreter; a message takes ``latency``.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wavepp_worker import EngineConfig
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.timed.timed_model import read_timed_model
from wavepp_worker.runtime.admission.round_planner import RoundPlanner, make_round_planner
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.protocol.lane_events import LaneAdmitted, LaneMessage
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.rank.garbage_collection import collect_young_only
from wavepp_worker.runtime.trace.slices import RankTimeline

from bench.virtual.host import Events
from bench.virtual.loops import VirtualLoops
from bench.virtual.rank import VirtualRank
from bench.virtual.rounds import VirtualRounds

LATENCY = 100e-6
"""Seconds of a message between two processes of a host (ZeroMQ over ipc, a thread to wake)."""


@dataclass
class Served:
    """One request: when it came, was admitted and ended (virtual seconds), its tokens and those reused.

    Attributes:
        turn: how many requests were admitted before it.
    """

    prompt_tokens: int
    submitted: float
    reused_tokens: int = 0
    turn: int = -1
    admitted: float = math.nan
    finished: float = math.nan

    @property
    def waiting(self) -> float:
        return self.admitted - self.submitted

    @property
    def completion(self) -> float:
        return self.finished - self.submitted


class Replica:
    """All ranks of one configuration; traffic comes one ``run`` after the other, caches stay."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        charge: float = 1.0,
        latency: float = LATENCY,
        timeline: bool = False,
        round_planner: Callable[[RankConfig], RoundPlanner] = make_round_planner,
        interval: int | None = None,
        window: Callable[[RankConfig], WindowSpec] | None = None,
    ) -> None:
        """``charge`` scales the host's CPU time; 0 makes runs repeatable. ``timeline`` records what happens.
        ``round_planner`` makes what rank 0 plans admission rounds with. With ``interval``, every rank has recurrent
        layers beside attention, with room for a snapshot every so many tokens. With ``window``, every rank has layers
        with a sliding window as well; it makes their cache.

        Raises:
            ConfigError: as the engine would.
        """
        self.events = events = Events()
        model = read_timed_model(config.model)
        with tempfile.TemporaryDirectory() as directory:
            configs = rank_configs(config, read_model_info(config.model), Path(directory))
        self.ranks = [
            VirtualRank(each, model, events, charge, timeline, interval, window) for each in configs
        ]
        leader = configs[0]
        self._rounds = VirtualRounds(events, self.ranks, leader, round_planner(leader), latency, charge)
        riders = leader.riders and interval is None and window is None
        self._loops = loops = VirtualLoops(events, self.ranks, leader, latency, riders=riders)
        self._rounds.to_loop, self._rounds.on_admitted = self._to_loop, loops.tell_follower
        loops.on_progress, loops.on_ended = self._rounds.progressed, self._ended
        self._served: dict[str, Served] = {}
        self._numbers = self._admissions = 0
        self._answered: Callable[[str], None] = lambda request_id: None
        collect_young_only()

    def closed_loop(self, prompts: Iterable[bytes], concurrency: int) -> list[Served]:
        """Send the prompts (packed tokens), ``concurrency`` at a time; returns when all are answered."""
        left = iter(prompts)

        def following() -> None:
            if (prompt := next(left, None)) is not None:
                self._submit(prompt)

        self._answered = lambda request_id: following()
        for _ in range(concurrency):
            following()
        return self._run()

    def sessions(self, sessions: Iterable[Iterable[bytes]]) -> list[Served]:
        """Begin all sessions now; each sends its next prompt when the last one is answered. Returns after the last."""
        asking: dict[str, Iterator[bytes]] = {}

        def following(prompts: Iterator[bytes]) -> None:
            if (prompt := next(prompts, None)) is not None:
                asking[self._submit(prompt)] = prompts

        self._answered = lambda request_id: following(asking.pop(request_id))
        for prompts in sessions:
            following(iter(prompts))
        return self._run()

    def open_loop(self, arrivals: Iterator[tuple[float, bytes]]) -> list[Served]:
        """Send each prompt that many seconds after now, in order; returns when all are answered."""
        begun = self.events.now

        def following() -> None:
            if (arrival := next(arrivals, None)) is not None:
                self.events.at(begun + arrival[0], arrive, arrival[1])

        def arrive(prompt: bytes) -> None:
            self._submit(prompt)
            following()

        self._answered = lambda request_id: None
        following()
        return self._run()

    def audit(self) -> None:
        """Raise unless every rank let go of everything."""
        self._rounds.leader.check()
        self._loops.leader.check()
        for rank in self.ranks:
            rank.parts.cache.audit()
            assert not rank.parts.requests.ids(), "a rank still knows requests"

    def timelines(self) -> list[RankTimeline]:
        """What every rank did since the last call; for ``write_timeline``."""
        taken = [rank.timeline.take() for rank in self.ranks]
        return [
            RankTimeline(number, tuple(slices), dropped) for number, (slices, dropped) in enumerate(taken)
        ]

    @property
    def waves(self) -> int:
        """Waves that were launched for the latest traffic."""
        return self._loops.waves

    @property
    def rounds(self) -> int:
        """Rounds of admission of the latest traffic."""
        return self._rounds.count

    @property
    def median_planning(self) -> float:
        """Seconds of CPU of one planning decision."""
        return statistics.median(self._loops.lanes.planning) if self._loops.lanes.planning else 0.0

    def _run(self) -> list[Served]:
        self._rounds.count = self._loops.waves = 0
        self._loops.lanes.planning.clear()
        for rank in self.ranks:
            rank.count_from_now()
        self.events.run()
        served, self._served = list(self._served.values()), {}
        unanswered = sum(math.isnan(each.finished) for each in served)
        if unanswered:
            raise RuntimeError(f"{unanswered} of {len(served)} requests were never answered")
        return served

    def _submit(self, prompt: bytes) -> str:
        name = f"r{self._numbers}"
        self._numbers += 1
        request = PrefillRequest(request_id=name, tokens=prompt)
        self._served[name] = Served(request.prompt_tokens, self.events.now)
        self._loops.submitted[name] = self.events.now
        self._rounds.submit(request)
        return name

    def _to_loop(self, messages: Sequence[LaneMessage]) -> None:
        for message in messages:
            if isinstance(message, LaneAdmitted):
                served = self._served[message.request_id]
                served.reused_tokens, served.admitted = message.start, self.events.now
                served.turn, self._admissions = self._admissions, self._admissions + 1
        self._loops.tell_leader(messages)

    def _ended(self, request_id: str) -> None:
        self._served[request_id].finished = self.events.now
        self._answered(request_id)
