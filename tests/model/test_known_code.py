"""Modules are known by their code."""

from __future__ import annotations

from functools import wraps

from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer, MistralRMSNorm
from wavepp_worker.model.known_code import computes_as, same_code


def test_names_and_words_do_not_count() -> None:
    assert computes_as(MistralRMSNorm(8), LlamaRMSNorm)
    assert not computes_as(Gemma2RMSNorm(8), LlamaRMSNorm)


def test_what_a_function_wraps_counts_and_so_does_what_wraps_it() -> None:
    assert same_code(MistralDecoderLayer.forward, LlamaDecoderLayer.forward)
    assert not same_code(Gemma2DecoderLayer.forward, LlamaDecoderLayer.forward), "norms behind its parts, too"

    @wraps(LlamaRMSNorm.forward)
    def doubled(*args: object) -> object:
        return 2 * LlamaRMSNorm.forward(*args)  # type: ignore[arg-type, operator]

    assert not same_code(doubled, LlamaRMSNorm.forward)
    assert not same_code(None, LlamaRMSNorm.forward)
