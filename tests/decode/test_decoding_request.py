from __future__ import annotations

from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import DecodeOutput
from wavepp_worker.errors import CacheCorrupt, HandoffError
from wavepp_worker.model.sampled_token import SampledToken

from tests.support.decoding_requests import decoding

TOKEN = (SampledToken(7),)


def test_an_output_tells_the_request_and_its_reuse() -> None:
    request, collector = decoding("r9", prompt_tokens=5)
    request.reused_tokens = 3
    request.emit(TOKEN)
    (output,) = collector.outputs
    assert (output.request_id, output.prompt_tokens, output.reused_tokens) == ("r9", 5, 3)
    assert (output.tokens, output.finish_reason, output.error) == (TOKEN, None, None)


def test_nothing_comes_after_the_output_with_a_finish_reason() -> None:
    request, collector = decoding()
    request.emit(TOKEN, "stop")
    request.emit(TOKEN)
    request.emit((), "cancelled")
    assert [output.finish_reason for output in collector.outputs] == ["stop"]


def test_an_error_is_told_as_the_nearest_class_that_callers_know() -> None:
    class RankLost(HandoffError):
        pass

    for error, kind in ((RankLost("rank 1"), "HandoffError"), (CacheCorrupt("x"), "CacheCorrupt")):
        request, collector = decoding()
        request.emit((), "error", error)
        assert (collector.last.error, collector.last.error_kind) == (str(error), kind)


def test_a_callback_that_fails_aborts_its_request() -> None:
    def broken(output: DecodeOutput) -> None:
        raise ValueError("no")

    plain, _ = decoding()
    request = DecodingRequest(plain.request, broken, plain.deadline)
    request.emit(TOKEN)
    assert request.aborted


def test_a_callback_may_emit_for_its_own_request() -> None:
    outputs: list[DecodeOutput] = []

    def ending(output: DecodeOutput) -> None:
        outputs.append(output)
        request.emit((), "cancelled")

    plain, _ = decoding()
    request = DecodingRequest(plain.request, ending, plain.deadline)
    request.emit(TOKEN)
    assert [output.finish_reason for output in outputs] == [None, "cancelled"]
