"""What one rank tells the engine of itself: heartbeats, its books, and what became reusable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Protocol

from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.results import StoredBlock
from wavepp_worker.errors import AuditError, WaveppError, error_text
from wavepp_worker.log_form import of_request
from wavepp_worker.runtime.protocol.events import (
    AuditReport,
    CacheChanges,
    Failed,
    Heartbeat,
    MovedBlocks,
    StoredRun,
)
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.state.idle_seconds import IdleSeconds
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable
from wavepp_worker.runtime.tiers.block_origins import BlockOrigin, BlockOrigins

logger = logging.getLogger(__name__)

RESTORED_BLOCKS_PER_MESSAGE = 4096
"""Blocks found on disk that one message tells of, about."""


class EventSink(Protocol):
    """Where events go; see ``protocol.outbox``."""

    def send(self, *messages: Message) -> None:
        """Send in the order of the calls, those of one call together; thread-safe, never waits."""


class RankReports:
    """Counts what this rank did, and reports it. Each counter has one writer.

    Attributes:
        rank: this rank's number.
        waves: waves executed since the start, counted by the LOOP thread; those of probes alone are not, on rank 0.
        rounds: rounds applied since the start that were about requests, counted by the WAVE thread; those about
            probes alone are not, on rank 0.
        busy: seconds that waves were computed since the start, counted by the LOOP thread.
        idle: seconds in which nothing was computed, by cause, counted by the LOOP thread.
        waves_in_flight: on rank 0, waves between their launch and their end on the last rank, by the LOOP thread.
    """

    def __init__(
        self,
        *,
        rank: int,
        events: EventSink,
        requests: RequestTable,
        cache: RankCache,
        origins: BlockOrigins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``origins``: where to keep what the reusable blocks are of, None for nowhere; ``clock`` returns seconds."""
        self.rank = rank
        self.waves = 0
        self.rounds = 0
        self.busy = 0.0
        self.waves_in_flight = 0
        self.idle = IdleSeconds(clock)
        self._events = events
        self._requests = requests
        self._cache = cache
        self._origins = origins
        self._clock = clock
        self._last_wave = clock()
        self._activity: tuple[float, float | None] = (0.0, None)
        self._untold: list[CacheChanges] = []

    def send(self, *events: Message) -> None:
        """Tell the engine what happened at this moment."""
        self._events.send(*events)

    def failed(self, request_id: str, error: Exception) -> None:
        """Tell the engine that this rank could not do something for one request, and go on without it.

        An error that is not of ours is a defect, and logged as such.
        """
        if not isinstance(error, WaveppError):
            logger.error("request %s failed", request_id, exc_info=error, extra=of_request(request_id))
        self.send(
            Failed(
                rank=self.rank,
                request_id=request_id,
                # What an exception quotes need be no text that can be sent.
                reason=error_text(error).encode(errors="backslashreplace").decode(),
            )
        )

    def wave_executed(self, seconds: float = 0.0, *, counted: bool = True) -> None:
        """Note the progress of a wave that took so many seconds to compute, and count it if it is ``counted``."""
        self.waves += counted
        self.busy += seconds
        self._last_wave = self._clock()

    def in_flight(self, waves: int) -> None:
        """On rank 0: so many waves are in flight from now on."""
        ended, since = self._activity
        if waves and since is None:
            self._activity = ended, self._clock()
        elif not waves and since is not None:
            self._activity = ended + self._clock() - since, None
        self.waves_in_flight = waves

    @property
    def active(self) -> float:
        """Seconds since the start in which some wave was in flight."""
        # Replaced as one: the WAVE thread reads it.
        ended, since = self._activity
        return ended + (0.0 if since is None else self._clock() - since)

    def round_applied(self) -> None:
        """Count a round."""
        self.rounds += 1

    def heartbeat(self, waiting: int, running: int) -> Heartbeat:
        """This rank's load, and how long ago it made progress; rank 0 adds its requests by where they are."""
        return Heartbeat(
            rank=self.rank,
            wave_age=self._clock() - self._last_wave,
            waiting=waiting,
            running=running,
            used_blocks=self._cache.use().held,
            waves=self.waves,
            rounds=self.rounds,
            busy=self.busy,
            tiers=self._cache.tiers(),
            in_flight=self.waves_in_flight,
            active=self.active,
            idle=self.idle.seconds(),
        )

    def audit(self, audit_id: int) -> None:
        """Report this rank's books to the engine."""
        problems: tuple[str, ...] = ()
        try:
            if self._requests.ids():
                self._cache.check()
            else:
                self._cache.audit()
        except AuditError as error:
            problems = (str(error),)
        use = self._cache.use()
        self.send(
            AuditReport(
                audit_id=audit_id,
                rank=self.rank,
                capacity=use.capacity,
                free=use.free,
                reusable=use.reusable,
                attached=self._cache.attached(),
                live=self._requests.ids(),
                problems=problems,
            )
        )

    def cache_changed(self, published: LocalRequest | None, *, more: bool = False) -> None:
        """Report what changed in the tree since the last call.

        Calls are in the order of the changes: the caller holds a lock around both.

        Args:
            published: whose blocks attached.
            more: the caller is about to call again, and what changed is told together then.
        """
        delta = self._cache.take_changes()
        keys = [block.key for block in delta.stored]
        runs = list(self._stored_runs(keys, published)) if published is not None else []
        self._keep_origins(runs, delta.removed)
        moved = _moved([*(pair for pair in below_device(delta.stored) if runs), *delta.moved])
        if runs or delta.removed or moved:
            removed = b"".join(delta.removed)
            self._untold.append(
                CacheChanges(rank=self.rank, stored=tuple(runs), removed=removed, moved=moved)
            )
        if self._untold and not more:
            untold, self._untold = self._untold, []
            self.send(*untold)

    def restored(self) -> None:
        """Report what the disk tier kept over the restart, before the first request."""
        stored = self._cache.take_changes().stored
        if self._origins is not None:
            self._origins.keep_only({block.key for block in stored})
        runs: list[StoredRun] = []
        told: list[StoredBlock] = []
        for chain in chains(stored):
            for first in range(0, len(chain), RESTORED_BLOCKS_PER_MESSAGE):
                part = chain[first : first + RESTORED_BLOCKS_PER_MESSAGE]
                runs.append(self._restored_run(part))
                told += part
                if len(told) >= RESTORED_BLOCKS_PER_MESSAGE:
                    self._tell_restored(runs, told)
                    runs, told = [], []
        if runs:
            self._tell_restored(runs, told)

    def _tell_restored(self, runs: list[StoredRun], blocks: list[StoredBlock]) -> None:
        self.send(CacheChanges(rank=self.rank, stored=tuple(runs), moved=_moved(below_device(blocks))))

    def _restored_run(self, chain: Sequence[StoredBlock]) -> StoredRun:
        keys = b"".join(block.key for block in chain)
        if self._origins is None:
            return StoredRun(keys, chain[0].parent)
        origins = [self._origins.get(block.key) for block in chain]
        tokens = b"".join(origin.tokens for origin in origins)
        return StoredRun(keys, chain[0].parent, tokens, origins[0].salt, origins[0].lora)

    def _keep_origins(self, runs: Sequence[StoredRun], removed: Sequence[bytes]) -> None:
        if self._origins is None:
            return
        size = self._cache.block_size
        for key in removed:
            self._origins.drop(key)
        for run in runs:
            for at, key in enumerate(BlockKeys(run.keys)):
                tokens = token_ids.part(run.tokens, at * size, (at + 1) * size)
                self._origins.add(key, BlockOrigin(tokens, run.salt, run.lora))

    def _stored_runs(self, keys: list[bytes], local: LocalRequest) -> Iterator[StoredRun]:
        """Blocks of a request as stretches without gaps: only attention to everything leaves none."""
        prompt, size, at = local.prompt, self._cache.block_size, 0
        while keys:
            at = local.keys.index(keys[0], at)
            pairs = zip(keys, local.keys[at : at + len(keys)], strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            packed, parent = b"".join(keys[:count]), local.keys[at - 1] if at else None
            if prompt is None:
                yield StoredRun(packed, parent)
            else:
                tokens = token_ids.part(prompt.tokens, at * size, (at + count) * size)
                yield StoredRun(packed, parent, tokens, prompt.salt, prompt.lora)
            keys = keys[count:]


def below_device(blocks: Iterable[StoredBlock]) -> list[tuple[bytes, Tier]]:
    """The blocks that are not on the device, and where they are."""
    return [(block.key, block.tier) for block in blocks if block.tier != Tier.DEVICE]


def _moved(blocks: Iterable[tuple[bytes, Tier]]) -> tuple[MovedBlocks, ...]:
    """In their order, neighbours of one tier together."""
    return tuple(
        MovedBlocks(tier, b"".join(key for key, _ in those)) for tier, those in groupby(blocks, itemgetter(1))
    )


def chains(blocks: Sequence[StoredBlock]) -> Iterator[list[StoredBlock]]:
    """The blocks of a forest as few parent-to-child stretches, each after the one that it branches off from."""
    below: dict[bytes | None, list[StoredBlock]] = {}
    for block in blocks:
        below.setdefault(block.parent, []).append(block)
    starts = below.get(None, [])[::-1]
    while starts:
        chain = [starts.pop()]
        while following := below.get(chain[-1].key):
            starts.extend(following[1:])
            chain.append(following[0])
        yield chain
