"""A rank's life: requests, waves, aborts and reads of the hand-off, drawn from a seed, and a device behind them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.protocol.waves import Span, WaveHeader
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.tiers import tier_store

from tests.support.deferred_blocks import BLOCK_BYTES, WaveKernels
from tests.support.deferred_gpu import DeferredGpu
from tests.support.deferred_rank import DeferredRank
from tests.support.rank_books import BLOCK, made

STEPS = 150
"""Of what threads do while requests keep coming."""
MOST_STEPS = 1000
"""Within which all that came is over."""
PACES = (0, 0, 0, 1, 3, 8, 20), (0, 0, 0, 1)
"""What the device does between two steps: it keeps up with the host, or falls behind."""

WAVE_TOKENS, WAVE_CHUNKS, WAVES = 24, 3, 6
"""The most of a wave, and the most waves on the device."""
WAVE_BLOCKS = 10
"""What such a wave touches of a window at most."""


@dataclass
class DrawnRequest:
    """An admitted request.

    Attributes:
        waves: of it that the device has not ended.
        over: all of it is in waves, or was let go of.
    """

    prompt: list[int]
    local: LocalRequest
    waves: int = 0
    over: bool = False

    @property
    def name(self) -> str:
        return self.local.request.request_id

    @property
    def position(self) -> int:
        """Its next token that is in no wave."""
        if self.local.table is not None:
            return self.local.position
        assert self.local.endpoint is not None
        return self.local.endpoint


class DeferredLife:
    """What the threads of a rank do, one step after the other; the device does some of its own between any two."""

    def __init__(self, gpu: DeferredGpu, rank: DeferredRank) -> None:
        self._gpu, self._draw, self._rank = gpu, gpu.draw, rank
        self._books, self._source = rank.books, rank.source
        self._prefixes = [[self._draw.randrange(50) for _ in range(30)] for _ in range(2)]
        self._requests: dict[str, DrawnRequest] = {}
        self._pace = self._draw.choice(PACES)
        self._came = self._waves = self._on_device = 0
        # Other threads act also while LOOP is about to have a wave follow the moves before it.
        begins = self._books.lifecycle.wave_begins

        def wave_begins(locals_: Sequence[LocalRequest]) -> None:
            self._meanwhile()
            begins(locals_)
            self._meanwhile()

        self._books.lifecycle.wave_begins = wave_begins  # type: ignore[method-assign]

    def live(self, steps: int = STEPS) -> None:
        """Do what is drawn; every wave and every read looks at what it finds."""
        turns = (
            *(self.arrive,) * 4,
            *(self.materialise,) * 3,
            *(self.launch,) * 5,
            *(self.read,) * 3,
            *(self.settle,) * 2,
            self.let_go,
        )
        for _ in range(steps):
            self._draw.choice(turns)()
            if self._draw.random() < 0.02:
                self._books.lifecycle.clear(0)
            self._gpu.progress(self._draw.choice(self._pace))

    def finish(self) -> None:
        """Until all that came is over."""
        for _ in range(MOST_STEPS):
            if not self._books.requests.ids():
                return
            for turn in (self.launch, self.materialise, self.read, self.settle):
                turn()
            self._gpu.progress(10)
        raise AssertionError(f"{self._books.requests.ids()} are not over")

    def arrive(self) -> None:
        """The WAVE thread: a request comes, and is admitted if there is room."""
        draw, name = self._draw, f"request {self._came}"
        self._came += 1
        prefix = draw.choice(self._prefixes)[: draw.randrange(30)]
        prompt = prefix + [100 + draw.randrange(3) for _ in range(draw.randrange(1, 14))]
        self._books.announce_request(made(name, prompt, self._source is not None and draw.random() < 0.6))
        local = self._books.requests.known(name)
        wanted = self._candidate(local, prompt)
        claim = self._rank.ownership.prepare([wanted], 0)[0]
        if 0 <= claim.endpoint < wanted.endpoint:
            claim = self._rank.ownership.reconcile(Admit(name, claim.endpoint))
        self._gpu.progress(draw.randrange(4))
        if not claim.committed or draw.random() < 0.1:
            # Here there is no room, or another rank has none.
            self._rank.ownership.failed(name)
            self._books.lifecycle.let_go(name)
            return
        branches = tuple(end for end in range(BLOCK, len(prompt), BLOCK) if draw.random() < 0.1)
        self._rank.ownership.admitted(Admit(name, claim.endpoint, branches=branches))
        self._requests[name] = DrawnRequest(prompt, local)

    def materialise(self) -> None:
        """The LOOP thread: a request takes its blocks ahead of its first wave."""
        able = [each.name for each in self._running() if self._books.lifecycle.ready(each.name)]
        if able:
            self._books.lifecycle.materialise(self._draw.choice(able))

    def launch(self) -> None:
        """The LOOP thread: a wave is queued."""
        spans = self._propose() if self._on_device < WAVES else []
        if not spans:
            return
        header = WaveHeader(wave_id=self._waves, spans=tuple(spans))
        self._waves += 1
        self._on_device += 1
        requests = [self._requests[span.request_id] for span in spans]
        for request in requests:
            request.waves += 1
        locals_ = self._books.parts.order.begin(header)
        kernels = WaveKernels(header.wave_id, spans, locals_, self._rank.blocks)
        for work in (kernels.begin, kernels.go_on, kernels.end, partial(self._wave_ended, requests)):
            self._gpu.compute.queue(work)
            self._meanwhile()
        self._books.parts.order.end(locals_, spans, (0.0,))
        for request, span in zip(requests, spans, strict=True):
            request.over = request.over or span.last

    def let_go(self) -> None:
        """The WAVE thread: a request is aborted that no wave carries and for whose blocks nobody waits."""
        able = [
            each
            for each in self._requests.values()
            if not each.waves and self._books.requests.get(each.name) is not None and not self._awaited(each)
        ]
        if able:
            request = self._draw.choice(able)
            request.over = True
            self._books.lifecycle.let_go(request.name)

    def read(self) -> None:
        """The thread of the hand-off: a decode worker gets what is ready of a request."""
        able = self._source.readable() if self._source is not None else []
        if self._source is not None and able:
            name = self._draw.choice(able)
            self._source.read(name, self._books.requests.known(name).keys)

    def settle(self) -> None:
        """The thread of the hand-off: what was read, or is not wanted, is not held for it any longer."""
        if self._source is not None:
            self._source.settle(self._books.settled)

    def _meanwhile(self) -> None:
        """What other threads and the device do while LOOP queues a wave."""
        for turn in (self.settle, self.read, self.arrive):
            if self._draw.random() < 0.1:
                turn()
        self._gpu.progress(self._draw.choice((0, 0, 1, 4)))

    def _running(self) -> list[DrawnRequest]:
        return [each for each in self._requests.values() if not each.over]

    def _awaited(self, request: DrawnRequest) -> bool:
        return any(self._books.lifecycle.writer_of(each.name) == request.name for each in self._running())

    def _candidate(self, local: LocalRequest, prompt: Sequence[int]) -> Admit:
        """As far as its prefix is reusable now, or, half of the time, will be thanks to another."""
        name, running = local.request.request_id, self._running()
        endpoint = self._books.cache.match(local.keys, len(prompt))
        if running and self._draw.random() < 0.5:
            writer = self._draw.choice(running)
            same = sum(
                1
                for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, writer.prompt, strict=False))
            )
            later = min(same, len(prompt) - 1) // BLOCK * BLOCK
            if later > endpoint:
                return Admit(name, later, writer.name)
        return Admit(name, endpoint)

    def _propose(self) -> list[Span]:
        """Chunks of some requests, first come first; of readers only where they can ride."""
        running = self._running()
        some = self._draw.sample(running, min(len(running), self._draw.randrange(1, WAVE_CHUNKS + 1)))
        rides = all(spec.kind == "full" for spec in self._rank.blocks.specs)
        spans: dict[str, Span] = {}
        tokens = WAVE_TOKENS
        for request in running:
            if request not in some or not tokens:
                continue
            writer = self._books.lifecycle.writer_of(request.name) if request.local.table is None else ""
            if writer:
                chunk = spans.get(writer)
                if not rides or chunk is None or chunk.start + chunk.length < request.position:
                    continue
            left = len(request.prompt) - request.position
            length = min(left, tokens, self._draw.randrange(1, 12))
            spans[request.name] = Span(request.name, request.position, length, length == left)
            tokens -= length
        return [*spans.values()]

    def _wave_ended(self, requests: Sequence[DrawnRequest]) -> None:
        self._on_device -= 1
        for request in requests:
            request.waves -= 1


def drive(seed: int, *, leases: bool) -> DeferredRank:
    """A rank's whole life, and what is left of it.

    Raises:
        WrongContent: somebody found in a block what should not have been there.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        gpu = DeferredGpu(patch, random.Random(seed))
        patch.setattr(tier_store, "STAGING_BYTES", gpu.draw.choice((1, 4)) * BLOCK_BYTES)
        patch.setattr(tier_store, "PINNED_BYTES", gpu.draw.choice((2, 16)) * BLOCK_BYTES)
        with gpu.deferred():
            rank = DeferredRank(gpu, Path(folder), leases=leases, wave_blocks=WAVE_BLOCKS)
            life = DeferredLife(gpu, rank)
            life.live()
            life.finish()
            rank.end()
        return rank
