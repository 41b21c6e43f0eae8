"""One request's blocks while a rank holds them for a decode worker, and when it may let go of them.

Pure: no threads, no clock (``now`` is given, in seconds), no sockets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.kv_source import Settled


@dataclass
class HeldKv:
    """A request between its offer and its settlement.

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

    @property
    def possible(self) -> bool:
        """Whether these books can be right for a request that is still held."""
        in_order = 0 <= self.sent <= self.ready <= self.prompt_tokens
        return in_order and self.readers >= 0 and not self.free

    def computed(self, ready: int, now: float) -> None:
        """Tokens ``[0, ready)`` are computed.

        While a receiver lags behind, only its own steps count as progress: else a stalled transfer could hide
        behind a prefill that goes on.
        """
        if ready <= self.ready:
            return
        if not (self.pulling and self.sent < self.ready):
            self.progress = now
        self.ready = min(ready, self.prompt_tokens)

    def start_pull(self) -> None:
        """A receiver connected and starts from token 0. Not progress: else one could reconnect for ever."""
        self.pulling = True
        self.sent = 0

    def stop_pull(self) -> None:
        """The receiver is gone."""
        self.pulling = False

    def moved(self, now: float) -> None:
        """The receiver took some bytes."""
        self.progress = now

    def delivered(self, end: int, now: float) -> None:
        """Tokens ``[0, end)`` are with the receiver."""
        self.sent = end
        self.progress = now

    def begin_read(self) -> None:
        """Someone reads the blocks from now on.

        Raises:
            HandoffError: the request is ending; its blocks must not be read any more.
        """
        if self.ending is not None:
            raise HandoffError(
                f"request {self.request_id} is {self.ending}; its KV must not be read any more"
            )
        self.readers += 1

    def end_read(self) -> None:
        """One who read the blocks does not any more."""
        self.readers -= 1

    def end(self, outcome: Settled) -> None:
        """Let go of the blocks once nobody reads them. The first outcome stays."""
        if self.ending is None:
            self.ending = outcome

    def overdue(self, since: float) -> bool:
        """Whether nothing moved after ``since`` (in seconds) though the request is not ending."""
        return self.ending is None and self.progress <= since
