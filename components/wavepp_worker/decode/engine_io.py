"""What goes into and comes out of a decode engine; frozen and typed."""

from __future__ import annotations

from typing import Literal

import msgspec

from wavepp_worker import token_ids
from wavepp_worker.handoff.decode.received import Moments
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.model.grammar.grammar import Grammar
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue, as a rule from KV that a prefill worker holds.

    Attributes:
        request_id: unique among live requests; a duplicate is refused.
        tokens: the prompt, packed as ``token_ids`` says.
        sampling: how tokens are chosen; the first one was chosen by the prefill worker.
        max_tokens: most tokens to generate, the first one included; cut to what the context leaves.
        min_tokens: no stop token is chosen before this many others are generated.
        stop_token_ids: tokens that end the generation, the model's own end tokens included unless unwanted.
        priority: who has a higher one gets blocks first.
        grammar: what the answer must match; None for anything. The first token was chosen by it.
        lora: name of the LoRA adapter that it goes through; empty for none.
        handoff: where the KV and the first token come from; None if this engine prefills the prompt itself.
    """

    request_id: str
    tokens: bytes
    sampling: SamplingParams = SamplingParams()
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    priority: int = 0
    grammar: Grammar | None = None
    lora: str = ""
    handoff: BootstrapAddress | None

    @property
    def prompt_tokens(self) -> int:
        return token_ids.count(self.tokens)


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """How the KV of a prompt came: when, how many bytes, and from how many ranks."""

    moments: Moments
    bytes_received: int
    ranks: int


class DecodeOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of a request's answer. Exactly one has a finish reason, the last.

    Attributes:
        tokens: new tokens in order; a stop token that ended the generation is among them.
        finish_reason: None while more is to come.
        error: a sentence, for ``error`` only.
        error_kind: the name of the class in ``errors`` that ``error`` would be raised as.
        prompt_tokens: length of the prompt.
        reused_tokens: prompt tokens that the prefill worker had cached; 0 until the first token.
        arrived: with the first token of a prompt that was handed over.
    """

    request_id: str
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_kind: str | None = None
    prompt_tokens: int
    reused_tokens: int = 0
    arrived: Arrived | None = None


class DecodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass, and what waited then.

    Attributes:
        requests: of which it computed the newest token.
        kv_tokens: whose KV it read for those.
        prompt_requests: of which it computed tokens of the prompt.
        prompt_tokens: that it computed of those.
        prompt_context_tokens: before those, whose KV it read.
        seconds: with the choice of the next tokens.
        queued_requests: that wait for KV or for blocks, or whose KV arrives.
        queued_tokens: of their prompts.
    """

    requests: int
    kv_tokens: int
    prompt_requests: int
    prompt_tokens: int
    prompt_context_tokens: int
    seconds: float
    queued_requests: int
    queued_tokens: int


class DecodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a decode engine, and totals since its start.

    Attributes:
        running: requests that generate a token in every step.
        waiting: requests without KV blocks: their prefill has not begun, or there is no room for them yet.
        receiving: requests whose KV is being transferred into their blocks.
        prompt_tokens_computed: prompt tokens that ran through this worker's model.
        kv_bytes_received: bytes of KV of all completed transfers.
        tokens_generated: tokens given out, the prefill workers' first tokens included.
        steps: forward passes.
        preemptions: how often a request has lost its blocks to another, and was computed again.
    """

    running: int
    waiting: int
    receiving: int
    used_blocks: int
    total_blocks: int
    prompt_tokens_computed: int
    kv_bytes_received: int
    tokens_generated: int
    steps: int
    preemptions: int
