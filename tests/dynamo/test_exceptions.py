from __future__ import annotations

import pytest
from dynamo.llm.exceptions import Cancelled, EngineShutdown, InvalidArgument, Unknown
from wavepp_worker.dynamo.exceptions import to_dynamo_exception
from wavepp_worker.errors import (
    EngineDead,
    HandoffError,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    RequestTimeout,
    WaveppError,
)


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (InvalidRequest("shorten it"), InvalidArgument, "shorten it"),
        (RequestAborted("gone"), Cancelled, "gone"),
        (EngineDead("rank 1"), EngineShutdown, "rank 1"),
        (HandoffError("rank 1"), Unknown, "HandoffError: rank 1"),
        (RequestFailed("no token is left"), Unknown, "RequestFailed: no token is left"),
        (RequestTimeout("5 s"), Unknown, "RequestTimeout: 5 s"),
    ],
)
def test_only_a_dead_engine_takes_the_worker_out_of_service(
    error: WaveppError, kind: type[Exception], sentence: str
) -> None:
    told = to_dynamo_exception(error)
    assert type(told) is kind
    assert sentence in str(told)
