"""The requests one rank knows, from their announcement until the rank holds nothing for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.results import Materialised
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.prefill_trace import WaveTrace
from wavepp_worker.runtime.protocol.requests import Arrival, PrefillRequest
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.state.idle_seconds import Cause


@dataclass
class LocalRequest:
    """One request on one rank.

    The WAVE thread writes ``endpoint``; who materialises (LOOP; WAVE with ``ownership=none``) ``materialised``,
    ``table`` and ``runs``; the LOOP thread ``position`` and ``compute``; the one that
    answers ``measured``; ``executed`` and ``settled`` are under a lock of
    ``RequestLifecycle``, as the hand-off's thread settles.

    Attributes:
        prompt: all of the request, on rank 0 alone.
        keys: of the prompt's full blocks.
        endpoint: tokens that all ranks reuse, once all have committed; else None.
        materialised: the blocks of every window once they are its own.
        table: int64 block table once it is executable here, with a row for each window of attention if there are
            several; else None.
        last_run: number of the last run of block moves that touches its blocks; its waves come after that.
        position: next token this rank will compute; everything before it is in the pool.
        snapshots: by window, device block to copy the state to at each token position of the chunk under way.
        compute: per rank, seconds of the waves it was part of so far (complete on the last rank).
        measured: on the last rank, those that its device told afterwards; not in ``compute``.
        waves: those waves, on the last rank, if the request is traced.
        executed: no wave will touch its blocks any more.
        settled: the hand-off will not read its blocks any more.
    """

    request: Arrival
    prompt: PrefillRequest | None = None
    keys: BlockKeys = field(init=False)
    endpoint: int | None = None
    materialised: Materialised | None = None
    table: torch.Tensor | None = None
    last_run: int = 0
    position: int = 0
    snapshots: tuple[dict[int, int], ...] = ()
    compute: list[float] = field(default_factory=list)
    measured: float = 0.0
    waves: list[WaveTrace] = field(default_factory=list)
    executed: bool = False
    settled: bool = False

    def __post_init__(self) -> None:
        self.keys = BlockKeys(self.request.keys)

    @property
    def probe(self) -> bool:
        """Whether nobody asked for it, as far as this rank knows: only rank 0 is told."""
        return self.prompt is not None and self.prompt.probe

    @property
    def whole(self) -> PrefillRequest:
        """All of the request, as rank 0 has it."""
        assert self.prompt is not None, "only rank 0 has prompts"
        return self.prompt


class RequestTable:
    """Requests by id; the WAVE thread announces and admits, the LOOP thread executes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[str, LocalRequest] = {}
        self._submitted: dict[str, PrefillRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def submitted(self, request: PrefillRequest) -> None:
        """On rank 0: keep all of a request that is yet to be announced."""
        with self._lock:
            self._submitted[request.request_id] = request

    def announce(self, arrival: Arrival) -> None:
        """Know a request from now on. ValueError if it is known."""
        with self._lock:
            if arrival.request_id in self._requests:
                raise ValueError(f"request {arrival.request_id} was announced twice")
            prompt = self._submitted.pop(arrival.request_id, None)
            self._requests[arrival.request_id] = LocalRequest(arrival, prompt)

    def get(self, request_id: str) -> LocalRequest | None:
        return self._requests.get(request_id)

    def known(self, request_id: str) -> LocalRequest:
        """A request that this rank must know, as rank 0 announced it and has not let go of it.

        Raises:
            PositionMismatch: it does not.
        """
        local = self._requests.get(request_id)
        if local is None:
            raise PositionMismatch(f"a round names request {request_id}, which this rank does not know")
        return local

    def asked_for(self, request_ids: Iterable[str]) -> bool:
        """Whether one of these is known here and no probe."""
        found = map(self._requests.get, request_ids)
        return any(local is not None and not local.probe for local in found)

    def admit(self, request_id: str, endpoint: int) -> None:
        """All ranks hold the request at token ``endpoint``: it may run."""
        with self._lock:
            self._requests[request_id].endpoint = endpoint

    def forget(self, request_id: str) -> None:
        with self._lock:
            self._requests.pop(request_id, None)
            self._submitted.pop(request_id, None)

    def ids(self) -> tuple[str, ...]:
        """Of all that were announced, and on rank 0 of those that will be."""
        with self._lock:
            return (*self._requests, *self._submitted)

    def admitted(self, request_id: str) -> bool:
        """Whether this rank knows that all ranks have committed the request."""
        local = self._requests.get(request_id)
        return local is not None and local.endpoint is not None

    def waits_for(self) -> Cause:
        """Why a rank behind rank 0 has nothing to compute, if it has nothing."""
        cause: Cause = "no_requests"
        with self._lock:
            for local in self._requests.values():
                if local.executed:
                    continue
                if local.endpoint is not None:
                    return "upstream"
                cause = "admission"
        return cause


def check_span(local: LocalRequest, span: Span) -> None:
    """Raise PositionMismatch unless ``span`` begins where this rank stands with the request."""
    end = span.start + span.length
    if span.start != local.position:
        raise PositionMismatch(
            f"request {span.request_id} is scheduled at token {span.start}, "
            f"but this rank stands at token {local.position}"
        )
    if span.length < 1 or span.last != (end == local.request.prompt_tokens):
        raise PositionMismatch(
            f"request {span.request_id} is scheduled for tokens {span.start} to {end} "
            f"(last: {span.last}), but its prompt has {local.request.prompt_tokens}"
        )
