"""How far one request has generated, and whether it is finished."""

from __future__ import annotations

from typing import Literal

import torch

from wavepp_worker import token_ids
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.decode.guide import LAST_SECONDS, Guide
from wavepp_worker.model.stage import Chunk, ChunkState


class Sequence:
    """A prompt, and the tokens generated after it.

    Attributes:
        prompt: uint32 ``[prompt tokens]``.
        generated: token ids, the first one included.
        computed: tokens whose KV is in the pool, of the prompt and of what was generated.
        guide: of an answer that must match a grammar, once that is compiled.
    """

    def __init__(self, request: DecodeRequest) -> None:
        self.request = request
        self.prompt = token_ids.unpack(request.tokens)
        self.generated: list[int] = []
        self.computed = len(self.prompt) if request.handoff is not None else 0
        self.guide: Guide | None = None
        self._stops = frozenset(request.stop_token_ids)
        self._stopped = False

    def accept(self, token: int) -> None:
        """Append a token."""
        self._stopped = not self.stops_banned and token in self._stops
        self.generated.append(token)
        if self.guide is not None and not self._stopped:
            self.guide.accept(token)

    def ended(self, patience: float) -> Literal["stop", "length"] | None:
        """Why the generation ends with the newest token, if it does.

        Args:
            patience: seconds to wait for the guide to know whether anything can follow. If that takes longer, the
                guide says so when it is asked what; it is waited for ``LAST_SECONDS`` where it will not be.

        Raises:
            WaveppError: the token does not go on to what the answer must match.
        """
        used_up = len(self.generated) >= self.request.max_tokens
        if used_up:
            patience = max(patience, LAST_SECONDS)
        if self._stopped or (self.guide is not None and self.guide.complete(patience)):
            return "stop"
        return "length" if used_up else None

    @property
    def stops_banned(self) -> bool:
        """Whether the next token must not be a stop token, as too few others are generated."""
        return len(self.generated) < self.request.min_tokens

    @property
    def banned(self) -> tuple[int, ...]:
        """Token ids that must not be chosen next."""
        return self.request.stop_token_ids if self.stops_banned else ()

    @property
    def length(self) -> int:
        """Tokens of the prompt and of what was generated so far."""
        return len(self.prompt) + len(self.generated)

    @property
    def left(self) -> int:
        """Tokens that are yet to run: as a rule the newest; more of a prompt that runs here, or was preempted."""
        return self.length - self.computed

    def preempt(self) -> None:
        """Its KV is gone: all of it is to run again."""
        self.computed = 0

    def next_chunk(self, block_table: torch.Tensor, state: int, most: int = 1) -> Chunk:
        """What runs next; what is chosen after the last of it is wanted.

        Args:
            block_table: int64, the request's physical blocks.
            state: its place for the state of recurrent layers.
            most: tokens, at least 1.
        """
        length = min(most, self.left)
        begun = ChunkState(state if self.computed else None, state)
        return Chunk(self.computed, length, block_table, length == self.left, begun, self.request.lora)

    def tokens_of(self, chunk: Chunk) -> list[int]:
        """The token ids of what ``next_chunk`` said."""
        start, end, prompt = chunk.start, chunk.start + chunk.length, len(self.prompt)
        of_prompt = [int(token) for token in self.prompt[start:end]] if start < prompt else []
        return of_prompt + self.generated[max(0, start - prompt) : max(0, end - prompt)]

    def ran(self, chunk: Chunk) -> None:
        """The KV of a chunk is in the pool."""
        self.computed = chunk.start + chunk.length

    def prompt_tokens_in(self, chunk: Chunk) -> int:
        """How many of a chunk's tokens are prompt tokens."""
        return max(0, min(chunk.start + chunk.length, len(self.prompt)) - chunk.start)
