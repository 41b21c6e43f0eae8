"""One rank on the virtual clock: production state, cache and admission beside a virtual device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.timed_model import TimedModel
from wavepp_worker.model.virtual_device import Queue
from wavepp_worker.runtime.admission.ownership import ImmediateOwnership, LeaseOwnership
from wavepp_worker.runtime.admission.round_actions import LockstepActions, RoundActions
from wavepp_worker.runtime.protocol.message import Message, encode
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.local_state import LocalState
from wavepp_worker.runtime.state.request_table import check_span
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import OFF, Timeline

from bench.virtual.host import Events, Host

CAUSES = ("no_work", "admission", "upstream", "local")


@dataclass(frozen=True)
class Wave:
    """A wave on its way to a rank.

    Attributes:
        arrives: when its activations are there, ns.
        gap: by cause, seconds that the stage before stood still for it.
    """

    wave_id: int
    spans: tuple[Span, ...]
    arrives: int = 0
    gap: dict[str, float] = field(default_factory=dict)


class Parking:
    """Stands in for the ``WaveGate``: the LOOP looks at it before each turn."""

    def __init__(self) -> None:
        self.parked = False

    def park(self, timeout: float) -> None:
        self.parked = True

    def resume(self) -> None:
        self.parked = False


class VirtualTiers:
    """Implements ``Tiers``: copies take time on their own engines and move nothing."""

    def __init__(self, model: TimedModel, layers: int, block: int, events: Events) -> None:
        self._model, self._layers, self._block = model, layers, block
        self._out, self._in = Queue(events.clock_ns), Queue(events.clock_ns)
        self.ready_at = 0
        """When all copies to the device that were asked for have ended (ns)."""

    def run(self, moves: Sequence[Move]) -> None:
        for target, queue, link in (
            (Tier.HOST, self._out, self._model.to_host),
            (Tier.DEVICE, self._in, self._model.from_host),
        ):
            blocks = sum(move.target[0] == target for move in moves)
            if blocks:
                ends = queue.launch(self._model.copy_time(link, self._layers, blocks * self._block))
                if target == Tier.DEVICE:
                    self.ready_at = ends

    def damaged(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        return ()


class Encoded:
    """Stands in for the socket to the engine: messages are encoded, as they would be, and go nowhere."""

    def send(self, message: Message) -> None:
        encode(message)


class VirtualRank:
    """A rank's state between two events; ``bench.virtual.replica`` moves it."""

    def __init__(
        self, config: RankConfig, model: TimedModel, events: Events, charge: float, timeline: bool
    ) -> None:
        self.config = config
        self.host = Host(events, charge)
        self.parking = Parking()
        layers = config.layers[1] - config.layers[0]
        self.tiers = VirtualTiers(model, layers, config.block_size, events)
        window = WindowSpec("attention", "full", config.blocks, host_blocks=config.host_blocks)
        outbox: Any = Encoded()
        self.timeline = Timeline(clock=self.host.clock_ns) if timeline else OFF
        cache = RankCache([window], config.block_size)
        self.state = LocalState(config, outbox, cache, self.tiers, self.timeline)
        owns = LeaseOwnership(self.state) if config.leases else ImmediateOwnership(self.state)
        gate: Any = self.parking
        self.actions = (
            LockstepActions(self.state, owns, gate) if config.lockstep else RoundActions(self.state, owns)
        )
        self.waves: deque[Wave] = deque()
        self.admitted: deque[str] = deque()
        self.admitted_at: dict[str, float] = {}
        self.loop_due = False
        self.idle = dict.fromkeys(CAUSES, 0.0)
        self.busy = 0.0
        self._layers, self._model, self._events = layers, model, events
        self._compute, self._link = Queue(events.clock_ns), Queue(events.clock_ns)

    @property
    def free_at(self) -> float:
        """When the device has nothing left to do (seconds)."""
        return self._compute.free_at / 1e9

    def materialise(self, request_id: str) -> bool:
        local = self.state.requests.get(request_id)
        return local is not None and self.state.materialise(local)

    def ready(self, spans: Sequence[Span]) -> bool:
        """Whether this rank has applied the outcome that admitted every request of a wave."""
        known = [self.state.requests.get(span.request_id) for span in spans]
        return all(local is not None and local.endpoint is not None for local in known)

    def execute(self, spans: Sequence[Span]) -> None:
        """The host's share of a wave: what the executor does around ``forward``."""
        compute = (0.0,) * (self.config.rank + 1)
        locals_ = [self.state.requests.known(span.request_id) for span in spans]
        for local, span in zip(locals_, spans, strict=True):
            self.state.materialise(local)
            check_span(local, span)
        for local, span in zip(locals_, spans, strict=True):
            self.state.advance(local, span, compute)

    def launch(self, wave: Wave, until: Sequence[tuple[str, float]]) -> tuple[int, dict[str, float], float]:
        """Queue a wave on the device.

        Args:
            until: causes in the order they kept the device waiting, and until when each did (seconds).

        Returns:
            When it ends (ns), by cause how long the device stood still before, and how long it takes.
        """
        seconds = self._model.wave_time(self._layers, [(span.start, span.length) for span in wave.spans])
        free = self._compute.free_at
        done = self._compute.launch(seconds, after=max(wave.arrives, self.tiers.ready_at))
        begin = done - round(seconds * 1e9)
        self.timeline.record("device", FORWARD, begin, done, wave.wave_id, spans=wave.spans)
        gap, at = dict.fromkeys(CAUSES, 0.0), free / 1e9
        for cause, end in [*until, ("local", begin / 1e9)]:
            end = min(end, begin / 1e9)
            if end > at:
                gap[cause] += end - at
                at = end
        for cause, idle in gap.items():
            self.idle[cause] += idle
        self.busy += seconds
        return done, gap, seconds

    def pass_on(self, wave: Wave, done: int, gap: dict[str, float]) -> Wave:
        """The wave as the next rank gets it, once the link has carried its activations."""
        sending, latency = self._model.hop_times(sum(span.length for span in wave.spans))
        arrives = self._link.launch(sending, after=done) + round(latency * 1e9)
        return Wave(wave.wave_id, wave.spans, arrives, gap)

    def count_from_now(self) -> None:
        """Forget what was counted, and count idle time from now on."""
        self.idle = dict.fromkeys(CAUSES, 0.0)
        self.busy = 0.0
        self._compute.free_at = max(self._compute.free_at, self._events.clock_ns())

    def idle_shares(self, seconds: float) -> dict[str, float]:
        """Why the device stood still, as shares of the ``seconds`` that end now."""
        tail = max(0.0, self._events.now - self._compute.free_at / 1e9)
        return {cause: (idle + tail * (cause == "no_work")) / seconds for cause, idle in self.idle.items()}
