"""What is read in events of Dynamo's frontend that say that something went wrong."""

from __future__ import annotations

import pytest
from wavepp_worker.dynamo.frontend_errors import refusal


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'data: {"error":{"message":"too long","code":400}}\n\n', 400),
        (b'data: {"error":{"message":"too long","code":422}}\r\n\r\n', 422),
        (b'data: {"error":{"message":"broken","code":500}}\n\n', None),
        (b'data: {"error":{"message":"of no standard","code":499}}\n\n', None),
        (b'data: {"error":{"message":"without one"}}\n\n', None),
        (b'data: {"error":"a word"}\n\n', None),
        (b'data: {"error":{"mess\n\n', None),
        (b'data: {"n":1}\n\ndata: {"error":{"message":"later","code":400}}\n\n', None),
    ],
)  # fmt: skip
def test_a_refusal_is_an_event_of_a_known_status_with_which_a_stream_begins(
    event: bytes, status: int | None
) -> None:
    assert refusal(event) == status
