"""One simulated rank: production's books and turns over fake block contents and a fake device."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from wavepp_worker import token_ids
from wavepp_worker.block_keys import SECRET_BYTES, BlockKeyMaker, BlockKeys
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.device_queue import DeviceQueue
from wavepp_worker.runtime.rank.loop_turn import FollowerLoop
from wavepp_worker.runtime.rank.parts import RankParts, make_parts
from wavepp_worker.runtime.rank.wave_turn import FollowerWave
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.timeline import OFF

from tests.simulator.layers import Contents, Layers, make_layers
from tests.simulator.setting import Setting
from tests.simulator.watch import Watch

MODEL_ID = "simulated"
FOR_EVER = 1e6
"""Seconds that a turn may wait for a message: here, what never comes shows as a hang instead."""


def key_maker(block_size: int) -> BlockKeyMaker:
    """As the engine has it: one secret for all ranks."""
    return BlockKeyMaker(bytes(SECRET_BYTES), MODEL_ID, block_size)


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

    def send(self, *messages: Message) -> None:
        self.told.extend(messages)

    def take(self) -> list[Message]:
        taken, self.told = self.told, []
        return taken


@dataclass
class SimulatedRank:
    """The state of one rank between two events.

    Attributes:
        specs: its windows.
        watch: what it promises in rounds.
        wave: its WAVE thread; None on rank 0, whose turns the world takes.
        loop: its LOOP thread; likewise.
        device: the waves on its device, where that runs behind the host.
        behind: whether it does; otherwise the host computes, and its LOOP does nothing else meanwhile.
        waves: arrived, and not taken by the LOOP, in order; with the time their activations are there.
        ready: that of the latest wave that the LOOP took.
        admitted: told to the LOOP, and not taken.
        rivals: endpoints of requests that only this rank knows.
        busy: the LOOP may have more to do at once.
        holds: the LOOP holds a wave that waits for admission.
        executing: the host computes a wave.
        device_free: when the device has nothing to do.
        speed: how many times slower it computes than rank 0.
        eager: how likely it materialises at an instant what no wave needs yet.
    """

    number: int
    specs: Sequence[WindowSpec]
    parts: RankParts
    watch: Watch
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
    waves: deque[tuple[WaveHeader, float]] = field(default_factory=deque)
    ready: float = 0.0
    admitted: list[str] = field(default_factory=list)
    busy: bool = False
    holds: bool = False
    rivals: dict[str, int] = field(default_factory=dict)
    executing: bool = False
    device_free: float = 0.0

    @property
    def keeps_prefixes(self) -> bool:
        """Whether the window whose changes it reports is one of full attention."""
        return bool(self.specs) and self.specs[0].kind == "full"

    def reusable(self) -> dict[bytes, Tier]:
        """Keys of the blocks of its first window that can be reused, and where they are."""
        return {key: node.tier for key, node in self.parts.cache._windows[0].tree.nodes.items()}

    def check_told(self) -> None:
        """Of what it could reuse and can no more, and the other way round, it has told the engine."""
        if self.specs:
            untold = self.parts.cache._windows[0].tree._changed
            assert not untold, f"rank {self.number} has not told that blocks came or went: {list(untold)}"

    def begin(self, header: WaveHeader) -> list[LocalRequest]:
        """What the executor does before the forward, what the model relies on, and the first write of its blocks."""
        locals_ = self.parts.order.begin(header)
        self.check_told()
        for layers in self.layers:
            layers.next_wave()
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
        """With nothing in flight: all is told, the books balance, nobody holds anything, what is reusable is right."""
        self.check_told()
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
        # Where a request reserves less than its prompt, it takes what it has reserved.
        own = [
            cache.block_size * window.ledger.get(name).blocks
            for window in cache._windows
            if window.spec.wave is not None
        ]
        begun = cache.begin(name, min(tokens, *own)) if own else cache.begin(name, tokens)
        self.parts.reports.cache_changed(None)
        self.contents.run((*claimed.moves, *begun.moves))
        for number, table in enumerate(claimed.tables):
            states = [claimed.states[number], *begun.snapshots[number].values()]
            for block in (*table, *states):
                self.contents.spoil(number, block)
        return True

    def evict(self, window: int, kept: Collection[int]) -> None:
        """What is reusable and nobody holds in a window, but for the first, second, ... blocks in ``kept``."""
        tree = self.parts.cache._windows[window].tree
        for node in list(tree.nodes.values()):
            if node.attached and not node.pins and node.depth + 1 not in kept:
                tree.detach(node)
        self.parts.reports.cache_changed(None)

    def prepare_rivals(self, prompts: Sequence[Sequence[int]]) -> None:
        """Requests of this rank alone, as many of them as there is room for."""
        cache = self.parts.cache
        maker = key_maker(cache.block_size)
        for index, tokens in enumerate(prompts):
            keys, name = BlockKeys(maker.keys(token_ids.pack(tokens))), f"rival-{index}"
            prepared = cache.prepare(name, keys, len(tokens), cache.hint(keys, len(tokens)))
            if prepared is None:
                return
            self.rivals[name] = prepared.endpoint

    def lower_rivals(self, tokens: int) -> None:
        """By so many tokens each, as if other ranks had kept less."""
        cache = self.parts.cache
        for name, endpoint in self.rivals.items():
            lower = max(0, endpoint - tokens) // cache.block_size * cache.block_size
            self.rivals[name] = cache.commit(name, lower).endpoint

    def release_rivals(self) -> None:
        for name in self.rivals:
            self.parts.cache.release(name)


def make_ranks(
    draw: random.Random, setting: Setting, admission: str, ownership: str, clock_ns: Callable[[], int]
) -> list[SimulatedRank]:
    """All devices run behind their hosts, or none does."""
    ranks = []
    windows, block_size = setting.windows, setting.block_size
    behind = draw.random() < 0.4
    eager = (0.0, 0.0, 0.02) if setting.crowd else (0.5, 0.5, 0.02, 0.0)
    for number, specs in enumerate(windows):
        blocks = min((spec.blocks for spec in specs if spec.kind != "recurrent"), default=0)
        contents, gate, events = Contents(len(specs), random.Random(draw.random())), SimulatedGate(), Events()
        parts = make_parts(
            RankCache(specs, block_size),
            contents,
            events,
            rank=number,
            headroom_blocks=min(
                2 * len(windows) * setting.chunk // block_size, int(blocks * setting.headroom)
            ),
            leases=ownership == "lease",
            gate=gate if admission == "lockstep" else None,
        )
        watch = Watch(number, parts, leases=ownership == "lease")
        wave = FollowerWave(parts.actions, parts.reports, FOR_EVER, setting.beat) if number else None
        ranks.append(
            SimulatedRank(
                number=number,
                specs=specs,
                parts=parts,
                watch=watch,
                wave=wave,
                loop=FollowerLoop(parts.order, OFF, FOR_EVER) if number else None,
                gate=gate,
                events=events,
                contents=contents,
                layers=make_layers(specs, block_size, contents),
                device=DeviceQueue(clock_ns),
                behind=behind,
                speed=1.0 if setting.crowd else draw.choice((1.0, 1.0, 4.0)),
                eager=draw.choice(eager),
            )
        )
    return ranks
