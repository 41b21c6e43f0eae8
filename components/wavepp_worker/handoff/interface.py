"""What the runtime and the decode worker need of a KV hand-off; the transports are behind it.

A hand-off has two kinds of connection, both opened by the decode side:

* to the prefill worker's *bootstrap server*: claim a room, learn where the ranks are (``Offer``), later the
  first token (``FirstToken``) or a sentence why there is none;
* to each rank's *source*: pull the KV of the rank's own layers, chunk by chunk while later chunks are still
  being computed, then confirm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
import torch

from wavepp_worker.model.sampling import SampledToken
from wavepp_worker.model.stage import PagedKV


class BootstrapAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a decode worker claims one request: a room of a prefill worker's bootstrap server."""

    host: str
    port: int
    room: int


class RankAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank offers its layers, and what it offers.

    Attributes:
        layers: ``(first, end)`` of the rank's layers.
        block: tokens per physical block on that rank.
        dtype: name of the KV dtype, e.g. ``bfloat16``.
        bytes_per_token: over all of the rank's layers.
    """

    rank: int
    host: str
    port: int
    layers: tuple[int, int]
    block: int
    dtype: str
    bytes_per_token: int
    transport: Literal["socket", "nixl"]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The prefill worker's answer to a claim: pull ``request_id`` from each of ``ranks``."""

    request_id: str
    prompt_tokens: int
    model_id: str
    ranks: tuple[RankAddress, ...]


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the prefill: what decode continues from."""

    first: SampledToken
    reused_tokens: int


Settled = Literal["received", "withdrawn", "expired", "failed"]


class KVSource(Protocol):
    """One rank's side: offers the KV of live requests. Thread-safe; no method blocks on the network."""

    address: RankAddress

    def offer(self, request_id: str, block_table: torch.Tensor, prompt_tokens: int, ready: int) -> None:
        """Start offering a request; tokens ``[0, ready)`` can be read already (the reused prefix)."""

    def advance(self, request_id: str, ready: int) -> None:
        """Tokens ``[0, ready)`` can be read now."""

    def withdraw(self, request_id: str) -> None:
        """Stop offering (aborted or failed). Settles as ``withdrawn`` once no transfer reads the blocks."""

    def pending(self) -> int:
        """Requests offered and not yet settled."""

    def close(self) -> None:
        """Settle everything and stop, within a bounded time."""


OnSettled = Callable[[str, Settled], None]
"""Called once per offered request, from the source's thread, when its blocks are no longer needed."""


class MakeSource(Protocol):
    """Build a source over one rank's KV memory."""

    def __call__(
        self, rank: int, host: str, kv: PagedKV, dtype: torch.dtype, timeout: float, on_settled: OnSettled
    ) -> KVSource: ...
