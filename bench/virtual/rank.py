"""One rank on the virtual clock: production state, cache and admission beside a virtual device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.timed.timed_model import TimedModel
from wavepp_worker.model.timed.virtual_device import Ending, Queue
from wavepp_worker.runtime.protocol.message import Message, encode
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.device_queue import DeviceQueue
from wavepp_worker.runtime.rank.parts import make_parts
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import OFF, Timeline

from bench.common.no_disk import NoDisk
from bench.virtual.host import Events, Host

CAUSES = ("no_work", "admission", "upstream", "local")


@dataclass(frozen=True)
class Wave:
    """A wave on its way to a rank.

    Attributes:
        arrives: when its activations are there, ns.
        gap: by cause, seconds that the stage before stood still for it.
    """

    header: WaveHeader
    arrives: int = 0
    gap: dict[str, float] = field(default_factory=dict)


class VirtualGate:
    """Implements ``Gate``: between two turns no wave runs, so parking takes no time; the LOOP looks before each."""

    def __init__(self) -> None:
        self.parked = False
        self.on_resume: Callable[[], None] = lambda: None

    def park(self) -> None:
        self.parked = True

    def resume(self) -> None:
        self.parked = False
        self.on_resume()


class VirtualTiers(NoDisk):
    """Implements ``Tiers``: copies take time on their own engines and move nothing."""

    def __init__(self, model: TimedModel, layers: int, block: int, events: Events) -> None:
        self._model, self._layers, self._block = model, layers, block
        self._out, self._in = Queue(events.clock_ns), Queue(events.clock_ns)
        self.ready_at = 0
        """When all copies to the device that were asked for have ended (ns)."""

    def run(self, moves: Sequence[Move]) -> Sequence[Copy]:
        for target, queue, link in (
            (Tier.HOST, self._out, self._model.to_host),
            (Tier.DEVICE, self._in, self._model.from_host),
        ):
            blocks = sum(move.target[0] == target for move in moves)
            if blocks:
                ends = queue.launch(self._model.copy_time(link, self._layers, blocks * self._block))
                if target == Tier.DEVICE:
                    self.ready_at = ends
        return ()


class Encoded:
    """Stands in for the socket to the engine: messages are encoded, as they would be, and go nowhere."""

    def send(self, *messages: Message) -> None:
        for message in messages:
            encode(message)


class VirtualRank:
    """A rank's state between two events; ``bench.virtual.rounds`` and ``bench.virtual.loops`` move it.

    Attributes:
        waves: arrived, the LOOP has not taken them yet.
        executing: the wave that the LOOP has taken.
        admitted: told to the LOOP, which has not taken them yet.
        admitted_at: when each request was admitted here (virtual seconds).
        device: the waves on the virtual device.
    """

    def __init__(
        self,
        config: RankConfig,
        model: TimedModel,
        events: Events,
        charge: float,
        timeline: bool,
        interval: int | None,
        window: Callable[[RankConfig], WindowSpec] | None = None,
    ) -> None:
        """``interval``: tokens between snapshots of recurrent layers; None without such layers. ``window``: see
        ``Replica``."""
        self.number = config.rank
        self.host = Host(events, charge)
        self.gate = VirtualGate()
        layers = config.layers[1] - config.layers[0]
        self.tiers = VirtualTiers(model, layers, config.block_size, events)
        windows = [WindowSpec("attention", "full", config.blocks, host_blocks=config.host_blocks)]
        if window is not None:
            windows.append(window(config))
        if interval is not None:
            states = 2 * config.max_num_seqs + config.blocks * config.block_size // interval
            windows.append(WindowSpec("recurrent", "recurrent", states, interval=interval))
        self.timeline = Timeline(clock=self.host.clock_ns) if timeline else OFF
        self.parts = make_parts(
            RankCache(windows, config.block_size),
            self.tiers,
            Encoded(),
            rank=config.rank,
            headroom_blocks=config.headroom_blocks,
            leases=config.leases,
            gate=self.gate if config.lockstep else None,
            timeline=self.timeline,
        )
        self.waves: deque[Wave] = deque()
        self.executing: Wave | None = None
        self.admitted: list[str] = []
        self.admitted_at: dict[str, float] = {}
        self.device = DeviceQueue(events.clock_ns)
        self.loop_due = False
        self.idle = dict.fromkeys(CAUSES, 0.0)
        self.busy = 0.0
        self._layers, self._model, self._events = layers, model, events
        self._compute, self._link = Queue(events.clock_ns), Queue(events.clock_ns)

    @property
    def free_at(self) -> float:
        """When the device has nothing left to do (seconds)."""
        return self._compute.free_at / 1e9

    def execute(self, header: WaveHeader) -> None:
        """The host's share of a wave: what the executor does around ``forward``."""
        locals_ = self.parts.order.begin(header)
        self.parts.order.end(locals_, header.spans, (0.0,) * (self.number + 1))

    def launch(self, wave: Wave, until: Sequence[tuple[str, float]]) -> tuple[int, dict[str, float], float]:
        """Queue a wave on the device.

        Args:
            until: causes in the order they kept the device waiting, and until when each did (seconds).

        Returns:
            When it ends (ns), by cause how long the device stood still before, and how long it takes.
        """
        seconds = self._model.wave_time(
            self._layers, [(span.start, span.length) for span in wave.header.spans]
        )
        free = self._compute.free_at
        done = self._compute.launch(seconds, after=max(wave.arrives, self.tiers.ready_at))
        begin = done - round(seconds * 1e9)
        self.device.launched(Ending(done))
        self.timeline.record("device", FORWARD, begin, done, wave.header.wave_id, spans=wave.header.spans)
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
        sending, latency = self._model.hop_times(sum(span.length for span in wave.header.spans))
        arrives = self._link.launch(sending, after=done) + round(latency * 1e9)
        return Wave(wave.header, arrives, gap)

    def count_from_now(self) -> None:
        """Forget what was counted, and count idle time from now on."""
        self.idle = dict.fromkeys(CAUSES, 0.0)
        self.busy = 0.0
        self._compute.free_at = max(self._compute.free_at, self._events.clock_ns())

    def idle_shares(self, seconds: float) -> dict[str, float]:
        """Why the device stood still, as shares of the ``seconds`` that end now."""
        tail = max(0.0, self._events.now - self._compute.free_at / 1e9)
        return {cause: (idle + tail * (cause == "no_work")) / seconds for cause, idle in self.idle.items()}
