"""transformers' own models, run plainly: what stages, engines and whole graphs must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from wavepp_worker import PrefillResult
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.sampling_params import SamplingParams

Tokens = Sequence[int] | np.ndarray | torch.Tensor


class Reference:
    """A model directory as transformers runs it, one whole prompt a forward."""

    def __init__(
        self, directory: Path, dtype: torch.dtype = torch.float32, attention: str | None = None
    ) -> None:
        """``attention`` is transformers' name of an implementation; by default it chooses one."""
        self._directory = directory
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation=attention
        ).eval()
        self._ends = self._model.generation_config.eos_token_id

    @torch.inference_mode()
    def logits(self, tokens: Tokens) -> torch.Tensor:
        """float32 ``[tokens, vocabulary]``."""
        return self._model(_batch(tokens)).logits[0].float()

    def next_logprobs(self, prompt: Tokens) -> torch.Tensor:
        """Log-probabilities ``[vocabulary]`` of the token after a prompt."""
        return self.logits(prompt)[-1].log_softmax(-1)

    def generate(self, prompt: Tokens, count: int, stops: tuple[int, ...] = ()) -> list[int]:
        """Greedy continuation, up to and with one of ``stops``."""
        return self._generate(prompt, count, list(stops) or None)

    def text(self, prompt: Tokens, count: int) -> str:
        """Greedy continuation as a server shows it: without the token that ended it."""
        return self._tokenizer.decode(self._generate(prompt, count, self._ends), skip_special_tokens=True)

    def sampled(self, prompt: Tokens, count: int, params: SamplingParams) -> list[int]:
        """What sampling from one forward of the whole sequence per token gives."""
        tokens = np.asarray(prompt)
        generated: list[int] = []
        while len(generated) < count:
            logits = self.logits([*tokens.tolist(), *generated])[-1]
            generated.append(sample(logits, params, len(generated), tokens, generated).token)
        return generated

    @torch.inference_mode()
    def _generate(self, prompt: Tokens, count: int, stops: Any) -> list[int]:
        ids = _batch(prompt)
        self._model.generation_config.eos_token_id = stops
        # Without a mask, generate takes padding ids in the prompt for padding.
        mask = torch.ones_like(ids)
        output = self._model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
        return output[0, ids.shape[1] :].tolist()

    @cached_property
    def _tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._directory)


def assert_right(reference: Reference, prompt: list[int], result: PrefillResult) -> None:
    """A float32 engine's first token, and the logprobs it gives, are those of a plain forward."""
    expected = reference.next_logprobs(prompt)
    assert result.first_token == int(expected.argmax())
    for token, logprob in result.top_logprobs:
        assert abs(logprob - float(expected[token])) < 1e-3
    assert result.prompt_tokens == len(prompt)
    assert result.reused_tokens < len(prompt)


def _batch(tokens: Tokens) -> torch.Tensor:
    return torch.from_numpy(np.asarray(tokens).astype(np.int64))[None]
