"""Requests of what callers give: a request, token ids or text; and what an engine refuses of them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.files.text_tokenizer import TextTokenizer
from wavepp_worker.model.sampling_params import SamplingParams, check_sampling, resolve_seed
from wavepp_worker.request_checks import (
    check_allowed,
    check_banned,
    check_biased,
    check_lora,
    check_prompt,
    check_salt,
)
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest, check_types

Prompt = PrefillRequest | Sequence[int] | str
"""What can be prefilled: a request, token ids, or text for the model's own tokenizer."""


class RequestMaker:
    """Makes one engine's requests. Thread-safe."""

    def __init__(
        self, config: EngineConfig, max_model_len: int, vocab_size: int, adapters: Collection[str] = ()
    ) -> None:
        """``adapters``: names of the LoRA adapters that there are."""
        self._config = config
        self._adapters = adapters
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._tokenizer = TextTokenizer(config.model, max_model_len)
        self._numbers = itertools.count()

    def request(
        self, prompt: Prompt, sampling: SamplingParams | None, top_logprobs: int | None, salt: str
    ) -> PrefillRequest:
        """``prompt`` as a request, under an id of its own unless it is one; for the rest see ``PrefillEngine.submit``.

        Raises:
            InvalidRequest: no flat list of token ids, or text that cannot be tokenised; or it is a request, and
                parameters are given beside it.
        """
        if isinstance(prompt, PrefillRequest):
            if sampling is not None or top_logprobs is not None or salt:
                raise InvalidRequest(
                    f"request {prompt.request_id} is given with sampling, top_logprobs or salt beside it; give them to "
                    "PrefillRequest.of instead"
                )
            return prompt
        ids = self._tokenizer.ids(prompt) if isinstance(prompt, str) else prompt
        params = SamplingParams() if sampling is None else sampling
        if top_logprobs is not None:
            params = msgspec.structs.replace(params, logprobs=top_logprobs)
        return PrefillRequest.of(f"prompt-{next(self._numbers)}", ids, salt=salt, sampling=params)

    def accepted(self, request: PrefillRequest) -> PrefillRequest:
        """A request as the ranks are to have it: with a seed, and a secret if its KV is handed off.

        Raises:
            InvalidRequest: the engine cannot run it.
        """
        check_types(request)
        check_prompt(request.tokens, self._max_model_len, self._vocab_size)
        check_salt(request.salt, "salt")
        check_salt(request.lora, "lora")
        check_lora(request.lora, self._adapters)
        check_sampling(request.sampling, self._config.top_logprobs)
        check_biased(request.sampling.logit_bias, self._vocab_size)
        check_banned(request.banned, self._vocab_size)
        check_allowed(request.allowed, request.banned, self._vocab_size)
        if request.handoff and self._config.handoff == "none":
            raise InvalidRequest(
                f"request {request.request_id} asks for a hand-off, but this engine hands nothing off "
                "(handoff=none); submit it without one, or start the engine with another handoff"
            )
        return msgspec.structs.replace(
            request,
            sampling=resolve_seed(request.sampling),
            secret=Secret.fresh() if request.handoff else None,
        )
