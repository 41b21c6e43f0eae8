"""What a rank holds for a request from its preparation until it runs: leases, or the blocks themselves.

``LeaseOwnership`` is the paper's (sections 4.4 and 4.5). ``ImmediateOwnership`` takes the blocks at once,
evicting for them early; lockstep admission has no other choice, and it is the baseline without leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.results import Prepared
from wavepp_worker.runtime.admission.outcome import NO_ROOM
from wavepp_worker.runtime.protocol.rounds import Admit, Claim
from wavepp_worker.runtime.state.lifecycle import RequestLifecycle
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable


class Ownership(Protocol):
    """What one rank holds for requests. Used by the WAVE thread only."""

    def prepare(self, wanted: Sequence[Admit], headroom: int) -> list[Claim]:
        """Pin up to each candidate and make sure of the room after it, one after the other.

        Args:
            wanted: requests with the endpoint that all ranks believe in.
            headroom: blocks that must stay available to others.
        """

    def reconcile(self, admit: Admit) -> Claim:
        """Go back to a lower endpoint; what was held is kept if it cannot be committed."""

    def admitted(self, admit: Admit) -> None:
        """All ranks have committed the request at this endpoint: it may run here."""

    def failed(self, request_id: str) -> None:
        """Some rank has no room: hold nothing for the request any more."""


class LeaseOwnership:
    """A lease on the prefix and an escrow for the rest; the LOOP thread materialises when the request runs."""

    def __init__(self, requests: RequestTable, cache: RankCache, lifecycle: RequestLifecycle) -> None:
        self._requests = requests
        self._cache = cache
        self._lifecycle = lifecycle

    def prepare(self, wanted: Sequence[Admit], headroom: int) -> list[Claim]:
        claims: list[Claim] = []
        for admit in wanted:
            prepared = self._prepare(admit, headroom)
            while prepared is not None and not self._lifecycle.prefetch(admit.request_id):
                prepared = self._prepare(admit, headroom)
            if prepared is None:
                break
            claims.append(Claim(prepared.endpoint, prepared.committed))
        return claims + [NO_ROOM] * (len(wanted) - len(claims))

    def reconcile(self, admit: Admit) -> Claim:
        prepared: Prepared | None = self._cache.commit(admit.request_id, admit.endpoint)
        # At a lower endpoint, a window that slides holds other blocks.
        while prepared is not None and not self._lifecycle.prefetch(admit.request_id):
            prepared = self._prepare(admit, 0)
        return Claim(prepared.endpoint, prepared.committed) if prepared is not None else NO_ROOM

    def admitted(self, admit: Admit) -> None:
        # First: once it is known to be admitted, the LOOP thread may run it.
        for endpoint in admit.branches:
            self._cache.ask(admit.request_id, endpoint)
        self._requests.admit(admit.request_id, admit.endpoint)

    def failed(self, request_id: str) -> None:
        self._lifecycle.release(request_id)

    def _prepare(self, admit: Admit, headroom: int) -> Prepared | None:
        local = self._requests.known(admit.request_id)
        return self._cache.prepare(
            admit.request_id,
            local.keys,
            local.request.prompt_tokens,
            admit.endpoint,
            headroom,
            admit.writer or None,
        )


class ImmediateOwnership:
    """Blocks are allocated, and victims evicted, while the request is being admitted."""

    def __init__(self, requests: RequestTable, cache: RankCache, lifecycle: RequestLifecycle) -> None:
        self._requests = requests
        self._cache = cache
        self._lifecycle = lifecycle

    def prepare(self, wanted: Sequence[Admit], headroom: int) -> list[Claim]:
        """All prefixes are pinned before any block is evicted, so that no request evicts another's prefix.

        Where room runs out, the pins of the last requests give way first.
        """
        del headroom
        locals_ = [self._requests.known(admit.request_id) for admit in wanted]
        endpoints = [self._lease(admit, local) for admit, local in zip(wanted, locals_, strict=True)]
        claims: list[Claim] = []
        pinned = len(wanted)
        while len(claims) < pinned:
            at = len(claims)
            if self._take(locals_[at]):
                claims.append(Claim(endpoints[at], committed=endpoints[at] == wanted[at].endpoint))
            else:
                pinned -= 1
                self._lifecycle.release(wanted[pinned].request_id)
        return claims + [NO_ROOM] * (len(wanted) - len(claims))

    def reconcile(self, admit: Admit) -> Claim:
        self._lifecycle.release(admit.request_id)
        return self.prepare([admit], 0)[0]

    def admitted(self, admit: Admit) -> None:
        self._lifecycle.install(self._requests.known(admit.request_id), admit.endpoint)
        self._requests.admit(admit.request_id, admit.endpoint)

    def failed(self, request_id: str) -> None:
        self._lifecycle.release(request_id)

    def _lease(self, admit: Admit, local: LocalRequest) -> int:
        lease = partial(self._cache.lease, admit.request_id, local.keys, local.request.prompt_tokens)
        endpoint = lease(admit.endpoint)
        while not self._lifecycle.prefetch(admit.request_id):
            endpoint = lease(admit.endpoint)
        return endpoint

    def _take(self, local: LocalRequest) -> bool:
        if not self._cache.reserve(local.request.request_id):
            return False
        self._lifecycle.take_blocks(local)
        return True
