"""Which requests rank 0 asks the ranks about next: in order, within limits. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from msgspec import structs

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.next_blocks import NextBlocks
from wavepp_worker.runtime.admission.order import (
    LOOKAHEAD,
    CacheView,
    PrefixOrder,
    Surroundings,
    charge,
    give_back,
)
from wavepp_worker.runtime.admission.outcome import RoundOutcome
from wavepp_worker.runtime.admission.sharing import Sharing
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.admission.waiting_line import WaitingLine
from wavepp_worker.runtime.admission.why_queued import why_queued
from wavepp_worker.runtime.admission.work import Admission, Work
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.protocol.whereabouts import Preparing, Queued

MAX_HINT_AGE_SECONDS = 0.02
"""Seconds after which the candidate of a request that had to wait is looked up again before it is prepared."""
MAX_LOOKED_UP_AGAIN = 32
"""Most of them that are looked up again in one round, so that it stays short for those it admits."""
LOCAL_RETRY_SECONDS = 0.01
"""Seconds until a request that does not fit rank 0 is looked at again, unless something is freed before."""
ROUND_RETRY_SECONDS = 0.1
"""The same for one that another rank had no room for: that takes a round, and rank 0 cannot see whether it pays."""
MOST_COUNTED = 128
"""Requests whose tokens are counted, of those that wait and of those to be announced: enough for all stages."""

NO_KEYS = BlockKeys()


@dataclass
class AdmissionQueue:
    """Requests between their arrival and the moment they stop counting against the limit.

    Attributes:
        limit: requests that may hold a lease at once (paper, section 4.4: the maximum batch size).
        lockstep: look requests up and prepare them in two rounds, one right after the other. Otherwise they
            are looked up as they arrive, also beyond the limit; they own nothing by it.
        headroom_tokens: tokens that preparing a request leaves to others.
        block_size: tokens per block, to let requests reuse blocks in the making; 0 if they shall not.
        order: who comes first under pressure; None if that is always first come, first served.
    """

    limit: int
    lockstep: bool = False
    headroom_tokens: int = 0
    block_size: int = 0
    order: PrefixOrder | None = None
    _sharing: Sharing = field(init=False)
    _waiting: WaitingLine = field(default_factory=WaitingLine)
    _not_looked_up: dict[str, None] = field(default_factory=dict)
    """Those that wait and have no candidate yet, in the order in which they came."""
    _preparing: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    _lower: dict[str, int] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _retry_at: float = -math.inf
    _looked_up_at: float = -math.inf
    _looked_up: bool = False
    _arrivals: int = 0
    _chosen: list[Waiting] | None = None
    """Who of those that wait may be prepared, as ``order`` said last; None for all."""

    def __post_init__(self) -> None:
        self._sharing = Sharing(self.block_size)

    def __len__(self) -> int:
        """Requests that are not admitted yet."""
        return len(self._waiting) + len(self._preparing)

    def waiting_tokens(self) -> int:
        """Tokens that they will compute, as far as is known; of many, of the first; of nobody who is held back."""
        coming = self._waiting.values() if self._chosen is None else self._chosen
        entries = islice(chain(self._preparing.values(), coming), MOST_COUNTED)
        return sum(entry.prompt_tokens - max(entry.candidate or 0, entry.shared) for entry in entries)

    @property
    def halfway(self) -> bool:
        """In lockstep, whether requests were looked up and are not all allocated: nothing else may come first."""
        return self.lockstep and (self._looked_up or bool(self._lower))

    def arrive(
        self, request_id: str, prompt_tokens: int, now: float, keys: BlockKeys = NO_KEYS, priority: int = 0
    ) -> None:
        self._arrivals += 1
        reusable = self._sharing.reusable(keys, prompt_tokens)
        company = len(self._open) + len(self._preparing) + len(self._waiting)
        entry = Waiting(now, prompt_tokens, self._arrivals, keys, reusable, priority, company)
        entry.shared = self._sharing.with_waiting(entry, self._waiting.last_served_first())
        self._waiting.append(request_id, entry)
        self._not_looked_up[request_id] = None
        if self.order is not None:
            self.order.arrived(entry)

    def withdraw(self, request_id: str) -> bool:
        """Forget a request that is not admitted yet; False if there is none. All ranks must let go of it."""
        self._lower.pop(request_id, None)
        self._not_looked_up.pop(request_id, None)
        found = self._waiting.take_out(request_id) or self._preparing.pop(request_id, None)
        if found is not None:
            self._chosen = None
            give_back(found, found.prompt_tokens)
            self._sharing.making.stopped_reading(request_id)
            self.freed()
        return found is not None

    def abort(self, request_id: str) -> int:
        """An admitted request has lost its owner; returns up to which token it goes on for others, 0 if for none."""
        return self._sharing.aborted(request_id)

    def take_lowered(self) -> list[tuple[str, int]]:
        """Requests without an owner that fewer others need now, and up to which token they go on."""
        return self._sharing.take_lowered()

    def materialised(self, request_id: str) -> None:
        """On rank 0, the request's blocks are its own: all it reuses is in waves. Unknown ids are ignored."""
        self._sharing.making.stopped_reading(request_id)

    def ended(self, request_id: str) -> None:
        """No wave carries an admitted request any more, and none will; unknown ids are ignored."""
        self.leave(request_id)
        self._sharing.making.ended(request_id)

    def leave(self, request_id: str) -> None:
        """An admitted request does not count against the limit any more; unknown ids are ignored."""
        self._open.discard(request_id)

    def writer_of(self, request_id: str) -> str:
        """Whose blocks a request waits for; empty if for nobody's."""
        return self._sharing.making.writer_of(request_id)

    def freed(self) -> None:
        """Some room may have come free: try again at once."""
        self._retry_at = -math.inf

    def due(self, now: float) -> float:
        """When ``work`` will have something to do, on the same clock; infinity if it waits for an event."""
        if self._lower or self._looked_up:
            return now
        if not self.lockstep and self._not_looked_up:
            return now
        if self._waiting and self._free_places() > 0:
            return max(now, self._retry_at)
        return math.inf

    def work(
        self,
        now: float,
        unreserved_tokens: float = math.inf,
        cache: CacheView | None = None,
    ) -> Work:
        """What to ask the ranks next. Every request in it has an answer in the round's outcome.

        Args:
            unreserved_tokens: what rank 0 could reserve for new requests at most. Who does not fit there is not asked
                about: a round that must fail costs all ranks and brings nothing.
            cache: of rank 0, which ``order`` looks at, and which tells what earlier prompts began with.
        """
        reconcile = tuple(
            Admit(name, endpoint, branches=self._branches(name, endpoint, cache))
            for name, endpoint in self._lower.items()
        )
        self._lower.clear()
        heads = self._heads(now, unreserved_tokens - self.headroom_tokens, cache)
        # Requests that fail on different ranks fail all, and would again, if they were asked for together.
        alone = bool(heads) and heads[0][1].failed and not self._open and not self._preparing
        if alone:
            del heads[1:]
        if self.lockstep:
            return self._lockstep_work(heads, reconcile, now)
        stale = tuple(self._not_looked_up)
        prepare: list[Admit] = []
        again: list[str] = []
        # While a request goes down, its demand grows: who came later must not take that room from it.
        if now >= self._retry_at and not reconcile:
            left = unreserved_tokens if alone else unreserved_tokens - self.headroom_tokens
            groups: set[int] = set()
            probed: set[tuple[str, int]] = set()
            # Of those that are being prepared, or will be in this round.
            ahead = NextBlocks(self._preparing.values())
            for request_id, entry in heads:
                if entry.candidate is None:
                    break
                admit = self._sharing.candidate(request_id, entry)
                if self._sharing.made_by_another(entry, admit, ahead):
                    break
                if (
                    cache is not None
                    and cache.leaves_snapshots
                    and self._sharing.probed_by_another(admit, probed)
                ):
                    break
                left -= self._room(entry, admit, groups)
                if left < 0:
                    if not prepare and not again:
                        entry.failed = True
                        self._retry_at = now + LOCAL_RETRY_SECONDS
                    break
                if now - entry.hinted > MAX_HINT_AGE_SECONDS or self._sharing.made_since(entry, admit):
                    again.append(request_id)
                    if len(again) == MAX_LOOKED_UP_AGAIN:
                        break
                elif not again:
                    # Nobody is prepared before those in front of it have been looked up again.
                    prepare.append(admit)
                    probed.add((admit.writer, admit.endpoint))
                    ahead.add(entry)
        for request_id in (*stale, *again):
            self._waiting[request_id].ended_before = self._sharing.making.ended_count
        self._begin(prepare, now)
        prepare = [
            structs.replace(admit, branches=self._branches(admit.request_id, admit.endpoint, cache))
            for admit in prepare
        ]
        return Work((*stale, *again), tuple(prepare), alone and bool(prepare), reconcile)

    def apply(self, outcome: RoundOutcome, now: float) -> list[Admission]:
        """Account for a round's outcome; returns what was admitted, in order."""
        if outcome.candidates:
            self._looked_up_at = now
        for candidate in outcome.candidates:
            if candidate.request_id in self._waiting:
                entry = self._waiting[candidate.request_id]
                if entry.candidate is None and self.order is not None:
                    # It may come before those that nothing could be done for.
                    self.freed()
                entry.candidate, entry.hinted = candidate.endpoint, now
                self._not_looked_up.pop(candidate.request_id, None)
                entry.discovered = now if entry.discovered is None else entry.discovered
        admissions = []
        for admit in outcome.admitted:
            entry = self._preparing.pop(admit.request_id)
            give_back(entry, admit.endpoint)
            self._open.add(admit.request_id)
            after = self._sharing.making.writer_of(admit.request_id)
            if self.order is not None:
                self.order.admitted(entry, admit.endpoint)
            self._sharing.admitted(admit, entry.keys)
            selected = now if entry.selected is None else entry.selected
            discovered = selected if entry.discovered is None else entry.discovered
            admissions.append(
                Admission(
                    admit.request_id,
                    admit.endpoint,
                    queued=selected - entry.arrived,
                    admission=now - selected,
                    after=after,
                    at=now,
                    discovery=discovered - entry.arrived,
                    attempts=entry.attempts,
                )
            )
        for admit in outcome.lower:
            self._lower[admit.request_id] = admit.endpoint
            self._sharing.lowered(admit)
        if outcome.failed:
            self._put_back(outcome.failed)
            self._retry_at = now + ROUND_RETRY_SECONDS
        elif admissions:
            self.freed()
        return admissions

    def whereabouts(
        self, request_ids: Collection[str], now: float, unreserved_tokens: float
    ) -> Iterator[Queued | Preparing]:
        """Where those of these requests are that are not admitted; changes nothing.

        Args:
            unreserved_tokens: see ``work``.
        """
        higher, priority = 0, None
        for ahead, (request_id, entry) in enumerate(self._waiting.items()):
            if entry.priority != priority:
                higher, priority = ahead, entry.priority
            if request_id in request_ids:
                yield self._queued(request_id, entry, ahead, higher, now, unreserved_tokens)
        for request_id in request_ids:
            if (prepared := self._preparing.get(request_id)) is not None:
                writer, reads_to = self._sharing.making.read_by(request_id)
                present = reads_to * self.block_size if writer else prepared.candidate or 0
                yield Preparing(
                    request_id=request_id,
                    seconds=now - (prepared.arrived if prepared.selected is None else prepared.selected),
                    endpoint=self._lower.get(request_id, present),
                    lowered=request_id in self._lower,
                    writer=writer,
                )

    def check(self) -> None:
        """Raise ValueError unless every request is in exactly one place and the limit is kept."""
        self._waiting.check()
        waiting, preparing = {*self._waiting}, self._preparing.keys()
        if waiting & preparing or waiting & self._open or preparing & self._open:
            raise ValueError("a request is in two places of the admission queue")
        unknown = {name for name, entry in self._waiting.items() if entry.candidate is None}
        if unknown != self._not_looked_up.keys():
            raise ValueError(f"of {sorted(unknown)} no look-up is known, taken for {[*self._not_looked_up]}")
        if not self._lower.keys() <= preparing:
            raise ValueError("a request is to be lowered that is not being prepared")
        if len(preparing) + len(self._open) > self.limit:
            raise ValueError(
                f"{len(preparing) + len(self._open)} requests hold leases, the limit is {self.limit}"
            )
        self._sharing.making.check()

    def _queued(
        self, request_id: str, entry: Waiting, ahead: int, higher: int, now: float, unreserved_tokens: float
    ) -> Queued:
        admit = self._sharing.candidate(request_id, entry)
        writer = self._sharing.prepared_writer(entry, admit.endpoint, self._preparing)
        needs = self._room(entry, admit, set())
        alone = not ahead and entry.failed and not self._open and not self._preparing
        room = max(0.0, unreserved_tokens if alone else unreserved_tokens - self.headroom_tokens)
        places = self._free_places()
        return Queued(
            request_id=request_id,
            seconds=now - entry.arrived,
            because=why_queued(
                entry, ahead=ahead, places=places, needs=needs, room=room, prepared_writer=writer
            ),
            ahead=ahead,
            higher=higher,
            priority=entry.priority,
            order="fcfs" if self.order is None else "prefix",
            needs=needs,
            room=needs if math.isinf(room) else int(room),
            holding=self.limit - places,
            limit=self.limit,
            writer=writer,
            first=next(iter(self._waiting)),
            passed=entry.passed,
        )

    def _branches(self, request_id: str, endpoint: int, cache: CacheView | None) -> tuple[int, ...]:
        entry = self._preparing[request_id]
        # Blocks of attention beyond the endpoint: an earlier prompt left them, but no snapshot there.
        seen = 0 if cache is None else cache.standing(entry.keys, entry.prompt_tokens).present
        return self._sharing.branches(entry, endpoint, self._waiting.values(), seen)

    def _put_back(self, failed: Iterable[str]) -> None:
        entries = [(request_id, self._preparing.pop(request_id)) for request_id in failed]
        for request_id, entry in entries:
            self._sharing.making.stopped_reading(request_id)
            give_back(entry, entry.prompt_tokens)
            entry.failed = True
        self._waiting.put_back(entries)

    def _heads(self, now: float, room: float, cache: CacheView | None) -> list[tuple[str, Waiting]]:
        """Those that may be prepared, in order."""
        places = max(0, self._free_places())
        chosen = None
        if self.order is not None and cache is not None and places and now >= self._retry_at:
            making, wave_tokens = self._sharing.making, self.order.wave_tokens
            preparing = [entry.prompt_tokens - (entry.candidate or 0) for entry in self._preparing.values()]
            around = Surroundings(
                room,
                cache,
                running=len(making) + len(self._preparing),
                admitted_tokens=self.block_size * making.under_way() + sum(preparing),
                under_way=self.block_size * making.under_way(wave_tokens // max(1, self.block_size))
                + sum(min(wave_tokens, tokens) for tokens in preparing),
                writer=making.writer,
            )
            chosen = self._chosen = self.order.heads(self._waiting.values(), now, around)
        if chosen is None:
            return list(islice(self._waiting.items(), places))
        if not chosen:
            self._retry_at = now + LOCAL_RETRY_SECONDS
        names = {id(entry): name for name, entry in islice(self._waiting.items(), LOOKAHEAD)}
        return [(names[id(entry)], entry) for entry in chosen[:places]]

    def _room(self, entry: Waiting, admit: Admit, groups: set[int]) -> int:
        """Tokens of room that rank 0 is taken to need for a request, beside those of ``groups``."""
        computed = entry.prompt_tokens - admit.endpoint
        if entry.demand is None:
            return computed
        shared = entry.demand.shared if entry.demand.group in groups else 0
        groups.add(entry.demand.group)
        return max(computed, entry.demand.alone - shared)

    def _free_places(self) -> int:
        return self.limit - len(self._open) - len(self._preparing)

    def _begin(self, prepare: Iterable[Admit], now: float) -> None:
        for admit in prepare:
            entry = self._waiting[admit.request_id]
            self._waiting.take_out(admit.request_id)
            entry.selected = now if entry.selected is None else entry.selected
            entry.attempts += 1
            if self.order is not None:
                charge(entry, self._waiting.values())
            self._preparing[admit.request_id] = entry
            self._sharing.reads(admit)
            if self._chosen is not None and entry in self._chosen:
                self._chosen.remove(entry)

    def _lockstep_work(
        self, heads: Sequence[tuple[str, Waiting]], reconcile: tuple[Admit, ...], now: float
    ) -> Work:
        if reconcile:
            # Those that failed would take the room for which it goes down, and all would fail again for ever.
            return Work(reconcile=reconcile)
        if not self._looked_up:
            self._looked_up = bool(heads) and now >= self._retry_at
            return Work(hint=tuple(request_id for request_id, _ in heads) if self._looked_up else ())
        self._looked_up = False
        prepare = []
        for request_id, entry in heads:
            if entry.hinted != self._looked_up_at:
                break
            prepare.append(Admit(request_id, entry.candidate or 0))
        self._begin(prepare, now)
        return Work(prepare=tuple(prepare))
