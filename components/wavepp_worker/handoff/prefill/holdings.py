"""The KV of every request that one rank holds for decode workers, on its event loop's clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

import torch

from wavepp_worker.errors import AuditError, HandoffError
from wavepp_worker.handoff.connection.change_signal import ChangeSignal
from wavepp_worker.handoff.kv_source import OnSettled, Settled
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.log_form import of_request
from wavepp_worker.model.device.side_stream import Moment

logger = logging.getLogger(__name__)

NAMED = 3
"""Of the requests that expire together, how many the log names: without decode workers all of them do."""
SETTLED_REMEMBERED = 1024
"""Settled requests whose outcome is remembered, to tell late pulls."""


class Holdings:
    """Every ``HeldKv`` from ``hold`` on; wakes who waits for a change, and says once how each settled.

    Belongs to one event loop; only ``check`` may be called from elsewhere.

    Args:
        timeout: seconds after which a request expires that nobody asks for though it is ready, or whose
            receiver is silent.
        on_settled: told every settlement when the request is no longer held.

    Attributes:
        changed: fires when a request is held, has more tokens computed, or begins to end; whoever serves it
            fires it when a receiver starts or stops reading.
    """

    def __init__(self, timeout: float, on_settled: OnSettled) -> None:
        self.timeout = timeout
        self.changed = ChangeSignal()
        self._on_settled = on_settled
        self._held: dict[str, HeldKv] = {}
        self._past: OrderedDict[str, tuple[Settled, Secret]] = OrderedDict()
        self._secrets: dict[str, Secret] = {}
        self._nobodys = Secret.fresh()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, request_id: str) -> HeldKv | None:
        return self._held.get(request_id)

    def past(self, request_id: str) -> Settled | None:
        """How a request settled that is not held again; None if it did not, or long ago."""
        settled = self._past.get(request_id)
        return settled[0] if settled is not None else None

    def expect(self, request_id: str, secret: Secret) -> None:
        """The request may be held soon, for whoever knows ``secret``."""
        self._secrets[request_id] = secret
        self._past.pop(request_id, None)

    def expected(self, request_id: str) -> bool:
        """Whether the request may be held yet, or is."""
        return request_id in self._secrets

    def allows(self, request_id: str, secret: Secret) -> bool:
        """Whether ``secret`` is that of the request, which is expected, held or settled.

        Takes as long for a request that is none of these.
        """
        known = self._secrets.get(request_id)
        if known is None and request_id in self._past:
            known = self._past[request_id][1]
        return (known or self._nobodys).matches(secret)

    def hold(
        self,
        request_id: str,
        table: torch.Tensor,
        prompt_tokens: int,
        ready: int,
        state: int | None = None,
        written: Moment = None,
    ) -> None:
        """Hold an expected request's blocks (``table``: int64), of which tokens ``[0, ready)`` are computed.

        ``written``: as of ``HeldKv``.

        Raises:
            HandoffError: the request is held already, or is not expected: nobody could know its secret.
        """
        if request_id not in self._secrets:
            raise HandoffError(f"request {request_id} is offered but was not expected")
        if request_id in self._held:
            raise HandoffError(f"request {request_id} is already offered; a request id must be unique")
        self._held[request_id] = HeldKv(
            request_id, table, prompt_tokens, ready, time.monotonic(), state=state, written=written
        )
        self.changed.fire()

    def computed(
        self, request_id: str, ready: int, table: torch.Tensor | None = None, written: Moment = None
    ) -> None:
        """Tokens ``[0, ready)`` are computed, when they are ``written``, in the blocks of ``table`` if that is given.

        Requests that are not held any more are ignored.
        """
        held = self._held.get(request_id)
        if held is not None:
            held.computed(ready, time.monotonic(), table, written)
            self.changed.fire()

    async def more(self, held: HeldKv) -> bool:
        """Wait for tokens to send; False if all are sent or the request is ending.

        Bounded by ``expire``: without a receiver that asks, the request expires, which is an ending.
        """
        await self.changed.wait_for(
            lambda: held.ending or held.ready > held.sent or held.sent == held.prompt_tokens
        )
        return held.ending is None and held.sent < held.prompt_tokens

    def end_read(self, held: HeldKv) -> None:
        """A read that ``held.begin_read`` began is over, which may settle the request."""
        held.end_read()
        self._settle_if_free(held)

    def end(self, request_id: str, outcome: Settled) -> None:
        """Let go of a request once nobody reads it. The first outcome stays; unknown ids are ignored.

        One that is only expected will not be held.
        """
        held = self._held.get(request_id)
        if held is not None:
            held.end(outcome)
            self._settle_if_free(held)
        else:
            self._secrets.pop(request_id, None)
        self.changed.fire()

    def end_all(self) -> None:
        """Withdraw every request, and expect none."""
        self._secrets = {name: secret for name, secret in self._secrets.items() if name in self._held}
        for request_id in list(self._held):
            self.end(request_id, "withdrawn")

    def settle_all(self) -> None:
        """Give up waiting for the reads of requests that are ending."""
        for held in list(self._held.values()):
            while held.readers:
                self.end_read(held)

    def end_overdue(self) -> None:
        """End what nobody asked for in time."""
        now = time.monotonic()
        overdue = [name for name, held in self._held.items() if held.overdue(now, self.timeout)]
        for name in overdue[:NAMED]:
            logger.warning(
                "the KV of request %s expired: nobody asked for it for %.1f s (handoff_timeout of the prefill "
                "worker), or for longer than its receiver waits (that of the decode worker)",
                name,
                self.timeout,
                extra=of_request(name),
            )
        if len(overdue) > NAMED:
            logger.warning(
                "the KV of %d more requests expired at the same time; is there a decode worker?",
                len(overdue) - NAMED,
            )
        for name in overdue:
            self.end(name, "expired")

    async def expire(self) -> None:
        """``end_overdue`` again and again, for as long as the loop runs."""
        while True:
            await asyncio.sleep(max(0.02, min(1.0, self.timeout / 10)))
            self.end_overdue()

    def check(self) -> None:
        """Raise ``AuditError`` if some request's books are impossible."""
        held = list(self._held.values())
        wrong = [each.request_id for each in held if not (each.possible and self.expected(each.request_id))]
        if wrong:
            raise AuditError(f"hand-off books are wrong for requests {', '.join(wrong)}")

    def _settle_if_free(self, held: HeldKv) -> None:
        if held.ending is None or not held.free:
            return
        del self._held[held.request_id]
        self._past[held.request_id] = held.ending, self._secrets.pop(held.request_id)
        if len(self._past) > SETTLED_REMEMBERED:
            self._past.popitem(last=False)
        self._on_settled(held.request_id, held.ending)
