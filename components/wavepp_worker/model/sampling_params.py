"""How the next token is to be chosen. Apart from the choosing, as configurations are checked without tensors."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose the next token. The defaults are greedy.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus mass in (0, 1].
        top_k: 0 keeps all.
        min_p: 0 keeps all.
        seed: None draws a fresh one at submission; the draw at a step depends on (seed, step) alone.
        presence_penalty: as OpenAI's, over generated tokens.
        frequency_penalty: as OpenAI's, over generated tokens.
        repetition_penalty: as in transformers, over prompt and generated tokens; 1 is none.
        logit_bias: ``(token id, bias)``, added to these tokens' logits before all else; ids outside the vocabulary do
            not count.
        logprobs: None for none, else how many alternatives to report beside the chosen token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
