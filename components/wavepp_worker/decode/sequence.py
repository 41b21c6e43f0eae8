"""How far one request has generated, and whether it is finished."""

from __future__ import annotations

from typing import Literal

import torch

from wavepp_worker import token_ids
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.decode.guide import Guide
from wavepp_worker.model.stage import Chunk, ChunkState


class Sequence:
    """A prompt, and the tokens generated after it.

    Attributes:
        prompt: uint32 ``[prompt tokens]``.
        generated: token ids, the first one included.
        computed: prompt tokens whose KV is in the pool.
        guide: of an answer that must match a grammar, once that is compiled.
    """

    def __init__(self, request: DecodeRequest) -> None:
        self.request = request
        self.prompt = token_ids.unpack(request.tokens)
        self.generated: list[int] = []
        self.computed = len(self.prompt) if request.handoff is not None else 0
        self.guide: Guide | None = None
        self._stops = frozenset(request.stop_token_ids)

    def accept(self, token: int) -> Literal["stop", "length"] | None:
        """Append a token; answers why the generation ends with it, if it does.

        Raises:
            WaveppError: it does not go on to what the answer must match.
        """
        may_stop = not self.stops_banned
        self.generated.append(token)
        if may_stop and token in self._stops:
            return "stop"
        if self.guide is not None and self.guide.accept(token):
            return "stop"
        return "length" if len(self.generated) >= self.request.max_tokens else None

    @property
    def stops_banned(self) -> bool:
        """Whether the next token must not be a stop token, as too few others are generated."""
        return len(self.generated) < self.request.min_tokens

    @property
    def banned(self) -> tuple[int, ...]:
        """Token ids that must not be chosen next."""
        return self.request.stop_token_ids if self.stops_banned else ()

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are yet to run."""
        return len(self.prompt) - self.computed

    def next_chunk(self, block_table: torch.Tensor, state: int, most: int = 1) -> Chunk:
        """What runs next: of the prompt, or the newest token, the only one whose KV is not in the pool then.

        Args:
            block_table: int64, the request's physical blocks.
            state: its place for the state of recurrent layers.
            most: tokens of the prompt; at least 1.
        """
        if self.prompt_left:
            length = min(most, self.prompt_left)
            last = length == self.prompt_left
            begun = ChunkState(state if self.computed else None, state)
            return Chunk(self.computed, length, block_table, last, begun, self.request.lora)
        start = len(self.prompt) + len(self.generated) - 1
        return Chunk(start, 1, block_table, True, ChunkState(state, state), self.request.lora)

    def tokens_of(self, chunk: Chunk) -> list[int]:
        """The token ids of what ``next_chunk`` said."""
        if chunk.start < len(self.prompt):
            return [int(token) for token in self.prompt[chunk.start : chunk.start + chunk.length]]
        return self.generated[-1:]

    def ran(self, chunk: Chunk) -> None:
        """The KV of a chunk is in the pool."""
        self.computed = min(len(self.prompt), max(self.computed, chunk.start + chunk.length))

    def prompt_tokens_in(self, chunk: Chunk) -> int:
        """How many of a chunk's tokens are prompt tokens."""
        return max(0, min(chunk.start + chunk.length, len(self.prompt)) - chunk.start)
