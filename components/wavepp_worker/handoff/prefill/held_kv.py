"""One request's blocks while a rank holds them for a decode worker, and when it may let go of them.

Pure: no threads, no clock (``now`` is given, in seconds), no sockets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.model.device.side_stream import Moment


@dataclass
class HeldKv:
    """A request between its offer and its settlement.

    Attributes:
        table: int64, physical block of each logical block, -1 where a window will have let go of it by the prompt's
            end, or where it is not computed yet; a row for each window if there are several.
        ready: tokens ``[0, ready)`` are computed.
        sent: tokens ``[0, sent)`` are with the present receiver.
        pulling: whether a receiver is connected.
        readers: reads of the blocks that are running.
        heard: when somebody last asked for it, or something moved; time that passes until its prefill is over
            counts only if a receiver is connected and says nothing.
        latest: when its first receiver will not wait any more; None before one came.
        ending: why the blocks will be let go of, once nobody reads them.
        state: block of the state of recurrent layers.
        written: when those tokens are, where a GPU computes them behind the host.
    """

    request_id: str
    table: torch.Tensor
    prompt_tokens: int
    ready: int
    heard: float
    sent: int = 0
    pulling: bool = False
    latest: float | None = None
    readers: int = 0
    ending: Settled | None = None
    state: int | None = None
    written: Moment = None

    @property
    def free(self) -> bool:
        """Whether the blocks may be let go of now."""
        return self.ending is not None and self.readers == 0

    @property
    def possible(self) -> bool:
        """Whether these books can be right for a request that is still held."""
        in_order = 0 <= self.sent <= self.ready <= self.prompt_tokens
        return in_order and self.readers >= 0 and not self.free

    def computed(
        self, ready: int, now: float, table: torch.Tensor | None = None, written: Moment = None
    ) -> None:
        """Tokens ``[0, ready)`` are computed, when they are ``written``, in the blocks of ``table`` if that is given.

        While a receiver is connected, only its own steps count: else one that is silent could hide behind a
        prefill that goes on.
        """
        if ready <= self.ready:
            return
        self.table = self.table if table is None else table
        if not self.pulling:
            self.heard = now
        self.ready, self.written = min(ready, self.prompt_tokens), written

    def start_pull(self, now: float, wait: float) -> None:
        """A receiver connected, which waits for ``wait`` seconds, and starts from token 0.

        Only the first one's wait counts: else one could reconnect for ever.
        """
        self.pulling = True
        self.sent = 0
        self.heard = now
        if self.latest is None:
            self.latest = now + wait

    def stop_pull(self, now: float) -> None:
        """The receiver is gone."""
        self.pulling = False
        self.heard = now

    def asked(self, now: float) -> None:
        """The receiver took some bytes, or said that it still wants them."""
        self.heard = now

    def delivered(self, end: int, now: float) -> None:
        """Tokens ``[0, end)`` are with the receiver."""
        self.sent = end
        self.heard = now

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

    def overdue(self, now: float, timeout: float) -> bool:
        """Whether nobody asked for ``timeout`` seconds for what is ready, or its receiver waits no longer.

        A request that waits for its waves has time, with a receiver that lives or with none: its owner bounds
        that.
        """
        if self.ending is not None:
            return False
        if self.latest is not None and self.latest <= now:
            return True
        return (self.pulling or self.ready == self.prompt_tokens) and self.heard <= now - timeout
