"""The KV that one rank holds for decode workers: until when, and waiting for that to change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

import torch

from wavepp_worker.handoff.connection.change_signal import ChangeSignal
from wavepp_worker.handoff.kv_source import OnSettled, Settled
from wavepp_worker.handoff.prefill.ledger import Held, Ledger

logger = logging.getLogger(__name__)

REMEMBERED = 1024
"""Settled requests whose outcome is remembered, to tell late pulls."""


class Holdings:
    """A ``Ledger`` with a clock: wakes who waits for a change, and says once how each request settled.

    Belongs to one event loop; only ``check`` may be called from elsewhere.

    Args:
        timeout: seconds without progress after which a request expires.
        on_settled: told every settlement when the request is no longer held.

    Attributes:
        changed: fires when a request is offered, advances or begins to end; whoever serves it fires it when a
            receiver starts or stops reading.
    """

    def __init__(self, timeout: float, on_settled: OnSettled) -> None:
        self.timeout = timeout
        self.changed = ChangeSignal()
        self._on_settled = on_settled
        self._ledger = Ledger(timeout)
        self._past: OrderedDict[str, Settled] = OrderedDict()

    def get(self, request_id: str) -> Held | None:
        return self._ledger.get(request_id)

    def past(self, request_id: str) -> Settled | None:
        """How a request settled that is not offered again; None if it did not, or long ago."""
        return self._past.get(request_id)

    def offer(self, request_id: str, table: torch.Tensor, prompt_tokens: int, ready: int) -> None:
        """Hold a request's blocks (``table``: int64); raises as ``Ledger.offer``."""
        self._ledger.offer(request_id, table, prompt_tokens, ready, time.monotonic())
        self._past.pop(request_id, None)
        self.changed.fire()

    def advance(self, request_id: str, ready: int) -> None:
        """Tokens ``[0, ready)`` are computed. Requests that are not held any more are ignored."""
        self._ledger.advance(request_id, ready, time.monotonic())
        self.changed.fire()

    def start_pull(self, held: Held) -> None:
        self._ledger.start_pull(held)

    def stop_pull(self, held: Held) -> None:
        self._ledger.stop_pull(held)

    async def more(self, held: Held) -> bool:
        """Wait for tokens to send; False if all are sent or the request is ending.

        Bounded by the ledger: without progress the request expires, which is an ending.
        """
        await self.changed.wait_for(
            lambda: held.ending or held.ready > held.sent or held.sent == held.prompt_tokens
        )
        return held.ending is None and held.sent < held.prompt_tokens

    def begin_read(self, held: Held) -> None:
        """Someone reads the blocks until ``end_read``; raises as ``Ledger.begin_read``."""
        self._ledger.begin_read(held)

    def end_read(self, held: Held) -> None:
        self._report(self._ledger.end_read(held))

    def moved(self, held: Held) -> None:
        """The receiver took some bytes."""
        self._ledger.moved(held, time.monotonic())

    def delivered(self, held: Held, end: int) -> None:
        """Tokens ``[0, end)`` are with the receiver."""
        self._ledger.delivered(held, end, time.monotonic())

    def end(self, request_id: str, outcome: Settled) -> None:
        """Let go of a request once nobody reads it. The first outcome stays; unknown ids are ignored."""
        self._report(self._ledger.end(request_id, outcome))
        self.changed.fire()

    def end_all(self) -> None:
        """Withdraw every request."""
        for held in self._ledger:
            self.end(held.request_id, "withdrawn")

    def settle_all(self) -> None:
        """Give up waiting for the reads of requests that are ending."""
        for held in self._ledger:
            while held.readers:
                self.end_read(held)

    async def expire(self) -> None:
        """End what made no progress for ``timeout``, for as long as the loop runs."""
        while True:
            await asyncio.sleep(max(0.02, min(1.0, self.timeout / 10)))
            for request_id in self._ledger.overdue(time.monotonic()):
                logger.warning(
                    "the KV of request %s expired: nothing moved for %.1f s", request_id, self.timeout
                )
                self.end(request_id, "expired")

    def check(self) -> None:
        """Raise ``AuditError`` if the books are wrong."""
        self._ledger.check()

    def _report(self, settled: Held | None) -> None:
        if settled is None or settled.ending is None:
            return
        self._past[settled.request_id] = settled.ending
        if len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
        self._on_settled(settled.request_id, settled.ending)
