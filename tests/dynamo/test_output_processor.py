from __future__ import annotations

from pathlib import Path
from typing import Any

from wavepp_worker.decode.engine_io import DecodeOutput, FinishReason
from wavepp_worker.dynamo.output_processor import OutputProcessor
from wavepp_worker.dynamo.request_parser import ParsedRequest, RequestLimits, parse_request
from wavepp_worker.dynamo.stop_text import StopText, load_tokenizer
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling_params import SamplingParams

LIMITS = RequestLimits(max_model_len=100, vocab_size=258, top_logprobs=5)


def parsed(**fields: Any) -> ParsedRequest:
    request: Any = {"token_ids": [1, 2, 3], **fields}
    return parse_request(request, LIMITS, SamplingParams())


def output(*tokens: int, finish: FinishReason | None = None) -> DecodeOutput:
    return DecodeOutput(
        request_id="r",
        tokens=tuple(SampledToken(token, -0.5, ((token, -0.5),)) for token in tokens),
        finish_reason=finish,
        prompt_tokens=3,
        reused_tokens=2,
    )


def spelling(model: Path, request: ParsedRequest) -> OutputProcessor:
    return OutputProcessor(request, StopText(load_tokenizer(model), request.stop_strings))


def test_the_usage_comes_with_the_first_and_the_last_chunk() -> None:
    processor = OutputProcessor(parsed(), None)
    outputs = (output(4), output(5), output(6, finish="length"))
    first, middle, last = (processor.chunk(each) for each in outputs)
    assert first is not None
    assert last is not None
    assert middle == {"token_ids": [5], "index": 0}
    assert first["completion_usage"]["completion_tokens"] == 1
    assert last["completion_usage"]["completion_tokens"] == processor.completion_tokens == 3
    assert last["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert (last["finish_reason"], "finish_reason" in first) == ("length", False)


def test_an_output_without_tokens_is_no_chunk() -> None:
    assert OutputProcessor(parsed(), None).chunk(output()) is None


def test_the_answer_ends_before_its_stop_string_and_counts_no_token_after_it(text_model: Path) -> None:
    processor = spelling(text_model, parsed(stop_conditions={"stop": ["'("]}, output_options={"logprobs": 1}))
    # Ids 4, 5, 6, 7, … of the byte alphabet in sorted order are "%&'(".
    first, last = processor.chunk(output(4, 5, 6)), processor.chunk(output(7, 8, 9))
    assert first is not None
    assert last is not None
    assert (first["text"], first["tokens"]) == ("%&", ["%", "&", "'"])
    assert (last["text"], last["finish_reason"], last["token_ids"]) == ("", "stop", [7])
    assert processor.completion_tokens == 4
    assert last["tokens"] == ["("]
    assert last["top_logprobs"][0][0]["token"] == "("


def test_text_held_back_comes_out_when_the_answer_ends_otherwise(text_model: Path) -> None:
    processor = spelling(text_model, parsed(stop_conditions={"stop": ["'("]}))
    last = processor.chunk(output(5, 6, finish="length"))
    assert last is not None
    assert (last["text"], last["finish_reason"]) == ("&'", "length")


def test_a_hidden_stop_token_has_no_text_but_is_counted(text_model: Path) -> None:
    processor = spelling(text_model, parsed(stop_conditions={"stop": ["x"], "stop_token_ids": [9]}))
    last = processor.chunk(output(5, 9, finish="stop"))
    assert last is not None
    assert (last["text"], last["token_ids"]) == ("&", [5, 9])
    assert processor.completion_tokens == 2
