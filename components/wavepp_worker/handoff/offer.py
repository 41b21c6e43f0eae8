"""What a decode worker is told of a request: where to ask for it, what each rank offers, the first token.

A hand-off has two kinds of connection, both opened by the decode side:

* to the prefill worker's *bootstrap server*: claim a room, learn where the ranks are (``Offer``), later the
  first token (``FirstToken``) or a sentence why there is none;
* to each rank's *source*: pull the KV of the rank's own layers, chunk by chunk while later chunks are still
  being computed, then confirm.

Both begin with a ``Secret``: of the room, and of the request.

A *room* is always what Dynamo calls a ``bootstrap_room``: the number under which both sides know a request.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.sampled_token import SampledToken

Transport = Literal["socket", "nixl"]


class BootstrapAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a decode worker claims one request, and how: a room of a prefill worker's bootstrap server."""

    host: str
    port: int
    room: int
    secret: Secret


class RankAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank offers its layers, and what it offers.

    Attributes:
        layers: ``(first, end)`` of the rank's layers.
        block_size: tokens per physical block on that rank.
        dtype: name of the KV dtype, e.g. ``bfloat16``.
        bytes_per_token: over all of the rank's layers.
        windows: of windows that slide ``(span, bytes per token)``, which ``bytes_per_token`` counts as well: of these
            only what decoding sees is handed over.
        state_bytes: of the state after a prompt, over all of the rank's recurrent layers.
        patience: seconds of silence after which the rank takes a receiver for gone.
    """

    rank: int
    host: str
    port: int
    layers: tuple[int, int]
    block_size: int
    dtype: str
    bytes_per_token: int
    transport: Transport
    patience: float = 60.0
    state_bytes: int = 0
    windows: tuple[tuple[int, int], ...] = ()

    def size(self, tokens: int) -> int:
        """Bytes that the rank hands over of a prompt of so many tokens."""
        return self.piece_size(0, tokens, tokens) + self.state_bytes

    def piece_size(self, start: int, end: int, prompt_tokens: int) -> int:
        """Bytes that the rank hands over of tokens ``[start, end)`` of a prompt."""
        firsts = self.firsts(prompt_tokens)
        passed = sum(size * max(0, min(end, firsts[span]) - start) for span, size in self.windows)
        return self.bytes_per_token * (end - start) - passed

    def firsts(self, prompt_tokens: int) -> dict[int, int]:
        """By span, the first token of a prompt that is handed over of the windows that slide."""
        whole = prompt_tokens // self.block_size
        return {
            span: max(0, (whole * self.block_size - span) // self.block_size) * self.block_size
            for span, _ in self.windows
        }


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The prefill worker's answer to a claim: pull ``request_id`` from each of ``ranks``, with ``secret``.

    Attributes:
        request_id: as the ranks know the request, and never again another one.
        adapter: the LoRA adapter that the KV was computed with, by name and content; empty for none.
    """

    request_id: str
    secret: Secret
    prompt_tokens: int
    model_id: str
    ranks: tuple[RankAddress, ...]
    adapter: str = ""


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the prefill: what decode continues from."""

    first: SampledToken
    reused_tokens: int
