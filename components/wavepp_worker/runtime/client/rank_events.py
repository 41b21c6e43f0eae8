"""What follows from what the ranks do: answers, index deltas, expired requests, and the engine's death."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from wavepp_worker.errors import (
    ConfigError,
    EngineDead,
    HandoffError,
    RequestFailed,
    RequestTimeout,
    StepTimeout,
    error_text,
)
from wavepp_worker.liveness.awake_clock import AwakeClock
from wavepp_worker.liveness.process_state import process_state
from wavepp_worker.log_form import of_request
from wavepp_worker.model.kv.layer_cache import keeping_everything
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.model.partition import partition_layers
from wavepp_worker.runtime.client.audit import IndexSize
from wavepp_worker.runtime.client.engine_state import EngineState
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.client.inquiry import Inquiry
from wavepp_worker.runtime.client.rank_replies import RankReplies
from wavepp_worker.runtime.client.request_ledger import Progress
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.events import (
    AdmissionExplained,
    Alive,
    AuditReport,
    CacheChanges,
    Cleared,
    Event,
    Failed,
    ForwardPass,
    Heartbeat,
    LanesExplained,
    ProfileChanged,
    RankFailed,
    RankReady,
)
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.load import PrefillPass
from wavepp_worker.runtime.protocol.rank_state import RankState
from wavepp_worker.runtime.protocol.requests import HandedOff

logger = logging.getLogger(__name__)

COUNT_SECONDS = 0.05
"""How long the count of those who wait to be admitted is good for: there may be many, and many waves a second."""


class Replies:
    """What all ranks were asked, by what they reply with."""

    def __init__(self, state: EngineState, ranks: int) -> None:
        self.audits: RankReplies[AuditReport] = RankReplies(state, ranks)
        self.clears: RankReplies[Cleared] = RankReplies(state, ranks)
        self.dumps: RankReplies[RankState] = RankReplies(state, ranks)
        self.profiles: RankReplies[ProfileChanged] = RankReplies(state, ranks)


class RankEvents:
    """Implements ``RankListener`` for one engine; called from the link's threads."""

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        state: EngineState,
        replies: Replies,
        inquiry: Inquiry,
        on_index: Callable[[IndexDelta], None] | None,
        on_handed_off: Callable[[HandedOff], None] | None,
        on_pass: Callable[[PrefillPass], None] | None,
    ) -> None:
        self._state = state
        self._replies = replies
        self._inquiry = inquiry
        self._on_index = on_index
        self._on_handed_off = on_handed_off
        self._on_pass = on_pass
        self._unadmitted = (0, 0)
        self._counted = 0.0
        self._reporting = _reporting_ranks(config, info)
        self._index = IndexFeed(len(self._reporting), config.block_size, info.model_id)
        self._request_timeout = config.request_timeout
        self._wave_timeout = config.wave_timeout
        self._awake = AwakeClock()

    def leading(self, keys: Sequence[bytes]) -> int:
        """As of ``IndexFeed``."""
        return self._index.leading(keys)

    def index_size(self) -> IndexSize:
        """How many blocks the ranks have said they can reuse, of those that say so; from any thread."""
        return IndexSize(
            {rank: self._index.stored(rank) for rank in sorted(self._reporting)}, self._index.stored()
        )

    def on_event(self, event: Event) -> None:
        """A rank reports."""
        state = self._state
        match event:
            case RankReady():
                with state.lock:
                    all_ready = state.roster.ready(event, self._awake.seconds)
                if all_ready:
                    state.started.set()
            case RankFailed(config=True):
                state.die(ConfigError(event.reason))
            case RankFailed():
                state.die(EngineDead(f"rank {event.rank} failed: {event.reason}"))
            case Heartbeat():
                with state.lock:
                    state.roster.beat(event)
            case Alive():
                with state.lock:
                    state.roster.alive(event.rank, self._awake.seconds)
            case CacheChanges():
                deltas = self._index.apply(event) if event.rank in self._reporting else []
                for delta in deltas:
                    if self._on_index is not None:
                        self._on_index(delta)
            case Failed():
                self._failed(event)
            case AuditReport():
                self._replies.audits.add(event.audit_id, event)
            case ProfileChanged():
                self._replies.profiles.add(event.profile_id, event)
            case RankState():
                self._replies.dumps.add(event.dump_id, event)
            case Cleared():
                self._replies.clears.add(event.clear_id, event)
            case ForwardPass():
                self._passed(event)
            case AdmissionExplained() | LanesExplained():
                self._inquiry.add(event)
            case _:
                self._progress(event)

    def on_tick(self) -> None:
        """Fail requests that are late, and the engine if a rank has fallen silent."""
        now = time.monotonic()
        with self._state.lock:
            late = self._state.ledger.late(now)
            silent = self._state.roster.silent(self._awake.read() - self._wave_timeout)
        for request_id in late:
            limit = f"request_timeout={self._request_timeout:g} s"
            self._state.abort(
                request_id, RequestTimeout(f"request {request_id} did not finish within {limit}")
            )
        if silent is not None:
            link = self._state.link
            state = process_state(link.processes.pids[silent]) if link is not None else "is gone"
            limit = f"wave_timeout={self._wave_timeout:g} s"
            self._state.die(
                EngineDead(f"rank {silent} has not been heard of for {limit}: its process {state}")
            )

    def on_exit(self, rank: int, reason: str) -> None:
        """A rank's process ended unasked."""
        self._state.die(EngineDead(f"rank {rank} {reason}"))

    def on_hang(self, error: StepTimeout) -> None:
        """The link's thread does not get on."""
        self._state.die(EngineDead(str(error)))

    def on_failure(self, error: Exception) -> None:
        """An event could not be read or handled."""
        self._state.die(EngineDead(f"a rank's event could not be handled: {error_text(error)}"))

    def _passed(self, event: ForwardPass) -> None:
        if self._on_pass is None:
            return
        now = time.monotonic()
        if now - self._counted >= COUNT_SECONDS:
            with self._state.lock:
                self._counted, self._unadmitted = now, self._state.ledger.unadmitted()
        requests, tokens = self._unadmitted
        self._on_pass(
            PrefillPass(
                requests=event.requests,
                tokens=event.tokens,
                context_tokens=event.context_tokens,
                seconds=event.seconds,
                queued_requests=event.waiting_requests + requests,
                queued_tokens=event.waiting_tokens + tokens,
            )
        )

    def _failed(self, event: Failed) -> None:
        with self._state.lock:
            name = self._state.ledger.name(event.request_id)
        if name is not None:
            text = f"request {name} failed on rank {event.rank}: {event.reason}"
            self._state.abort(name, RequestFailed(text))

    def _progress(self, event: Progress) -> None:
        with self._state.lock:
            name = self._state.ledger.name(event.request_id)
            follows = self._state.ledger.progress(event, time.monotonic())
        if name is None:
            return
        if follows.on_admitted is not None:
            try:
                follows.on_admitted()
            except Exception as error:
                logger.exception("request %s fails: its on_admitted raised", name, extra=of_request(name))
                text = f"what was to follow the admission of request {name} failed"
                self._state.abort(name, RequestFailed(f"{text}: {error_text(error)}"))
        if follows.future is not None and follows.answer is not None:
            follows.future.set_result(follows.answer)
        if follows.handed_off is not None and self._on_handed_off is not None:
            self._on_handed_off(follows.handed_off)
        if follows.unwanted is not None:
            text = f"no decode worker took the KV of request {follows.unwanted} in time"
            self._state.abort(follows.unwanted, HandoffError(text))


def _reporting_ranks(config: EngineConfig, info: ModelInfo) -> frozenset[int]:
    """The ranks that keep every token of a prompt in some layer, and so know which blocks it begins with; and rank 0.

    It says what blocks are of, and keeps account of their keys also where no layer of it keeps every token. None where
    no layer of the model does: a router is not told anything then.
    """
    attend = keeping_everything(info.caches, partition_layers(info, config.pp, config.partition))
    return attend | {0} if attend else frozenset()
