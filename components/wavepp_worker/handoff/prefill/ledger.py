"""Which requests' blocks one rank holds for decode workers, and when it may let go of them.

Pure: no threads, no clock (``now`` is given, in seconds), no sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from wavepp_worker.errors import AuditError, HandoffError
from wavepp_worker.handoff.kv_source import Settled


@dataclass
class Held:
    """One request's blocks.

    Attributes:
        table: int64, physical block of each logical block.
        ready: tokens ``[0, ready)`` are computed.
        sent: tokens ``[0, sent)`` are with the present receiver.
        pulling: whether a receiver is connected.
        readers: reads of the blocks that are running.
        progress: when something last moved.
        ending: why the blocks will be let go of, once nobody reads them.
    """

    request_id: str
    table: torch.Tensor
    prompt_tokens: int
    ready: int
    progress: float
    sent: int = 0
    pulling: bool = False
    readers: int = 0
    ending: Settled | None = None

    @property
    def free(self) -> bool:
        """Whether the blocks may be let go of now."""
        return self.ending is not None and self.readers == 0


class Ledger:
    """Every request between ``offer`` and its settlement.

    A held request settles exactly once: ``end`` and ``end_read`` return it when it does, and it is gone then.

    Args:
        timeout: seconds without progress after which a request is overdue.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def get(self, request_id: str) -> Held | None:
        return self._held.get(request_id)

    def offer(self, request_id: str, table: torch.Tensor, prompt_tokens: int, ready: int, now: float) -> Held:
        """Hold a request's blocks.

        Raises:
            HandoffError: the request is held already.
        """
        if request_id in self._held:
            raise HandoffError(f"request {request_id} is already offered; a request id must be unique")
        held = Held(request_id, table, prompt_tokens, ready, now)
        self._held[request_id] = held
        return held

    def advance(self, request_id: str, ready: int, now: float) -> None:
        """More tokens are computed. Requests that are not held any more are ignored.

        While a receiver lags behind, only its own steps count as progress: else a stalled transfer could hide
        behind a prefill that goes on.
        """
        held = self._held.get(request_id)
        if held is None or ready <= held.ready:
            return
        if not (held.pulling and held.sent < held.ready):
            held.progress = now
        held.ready = min(ready, held.prompt_tokens)

    def start_pull(self, held: Held) -> None:
        """A receiver connected and starts from token 0. Not progress: else one could reconnect for ever."""
        held.pulling = True
        held.sent = 0

    def stop_pull(self, held: Held) -> None:
        held.pulling = False

    def moved(self, held: Held, now: float) -> None:
        """The receiver took some bytes."""
        held.progress = now

    def delivered(self, held: Held, end: int, now: float) -> None:
        """Tokens ``[0, end)`` are with the receiver."""
        held.sent = end
        held.progress = now

    def begin_read(self, held: Held) -> None:
        """Someone reads the blocks until ``end_read``.

        Raises:
            HandoffError: the request is ending; its blocks must not be read any more.
        """
        if held.ending is not None:
            raise HandoffError(
                f"request {held.request_id} is {held.ending}; its KV must not be read any more"
            )
        held.readers += 1

    def end_read(self, held: Held) -> Held | None:
        held.readers -= 1
        return self._settle(held)

    def end(self, request_id: str, outcome: Settled) -> Held | None:
        """Let go of a request once nobody reads it. The first outcome stays; unknown ids are ignored."""
        held = self._held.get(request_id)
        if held is None:
            return None
        if held.ending is None:
            held.ending = outcome
        return self._settle(held)

    def overdue(self, now: float) -> list[str]:
        """Requests that have made no progress for the timeout and are not ending yet."""
        limit = now - self._timeout
        return [held.request_id for held in self if held.ending is None and held.progress <= limit]

    def check(self) -> None:
        """Raise ``AuditError`` if some request's books are impossible."""
        wrong = [
            held.request_id
            for held in self
            if not 0 <= held.sent <= held.ready <= held.prompt_tokens or held.readers < 0 or held.free
        ]
        if wrong:
            raise AuditError(f"hand-off books are wrong for requests {', '.join(wrong)}")

    def _settle(self, held: Held) -> Held | None:
        if not held.free:
            return None
        return self._held.pop(held.request_id, None)
