"""What the runtime needs of a rank's side of the hand-off; the transports are behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.secret import Secret

if TYPE_CHECKING:
    import torch

Settled = Literal["received", "withdrawn", "expired", "failed"]
"""How the hand-off of a request's KV ended on one rank."""


class KVSource(Protocol):
    """One rank's side: offers the KV of live requests. Thread-safe; no method blocks on the network."""

    address: RankAddress

    def expect(self, request_id: str, secret: Secret) -> None:
        """A request may be offered, to whoever knows its secret; until it is, or ``withdraw``, they wait."""

    def offer(
        self,
        request_id: str,
        block_table: torch.Tensor,
        prompt_tokens: int,
        ready: int,
        state: int | None = None,
    ) -> None:
        """Start offering an expected request; tokens ``[0, ready)`` can be read already (the reused prefix).

        ``state``: block of its running state, where layers are recurrent; read once all tokens are ready.
        ``block_table``: as a ``Chunk`` has it; -1 for blocks that are not read, as no token after the prompt sees them.
        """

    def advance(self, request_id: str, ready: int, block_table: torch.Tensor | None = None) -> None:
        """Tokens ``[0, ready)`` can be read now.

        ``block_table``: as of ``offer``, where blocks have come since.
        """

    def withdraw(self, request_id: str) -> None:
        """Stop offering or expecting (aborted or failed).

        What was offered settles as ``withdrawn`` once no transfer reads the blocks.
        """

    def pending(self) -> int:
        """Requests offered and not yet settled."""

    def close(self) -> None:
        """Settle everything and stop, within a bounded time."""


OnSettled = Callable[[str, Settled], None]
"""Called once per offered request, from the source's thread, when its blocks are no longer needed."""
