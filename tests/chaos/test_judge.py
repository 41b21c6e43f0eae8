"""What an answer is worth."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.judge import Reply, Verdict, judge
from tests.chaos.workload import Ask, Manner

WHOLE = Ask(0, 0.0, Manner.WHOLE, {}, "abc")
STREAM = Ask(0, 0.0, Manner.STREAM, {}, "abc")
ABORTED = Ask(0, 0.0, Manner.ABORTED, {}, "abc", patience=0.1)
INVALID = Ask(0, 0.0, Manner.INVALID, {}, "")
ANSWER: dict[str, Any] = {"status": 200, "text": "abc", "finishes": ["length"], "done": True}


@pytest.mark.parametrize(
    ("ask", "values", "verdict"),
    [
        (WHOLE, ANSWER, Verdict.RIGHT),
        (STREAM, ANSWER, Verdict.RIGHT),
        (ABORTED, ANSWER, Verdict.RIGHT),
        (WHOLE, {**ANSWER, "text": "abd"}, Verdict.WRONG),
        (WHOLE, {**ANSWER, "text": "ab"}, Verdict.WRONG),
        (WHOLE, {**ANSWER, "text": "abcd"}, Verdict.WRONG),
        (STREAM, {**ANSWER, "finishes": ["stop"]}, Verdict.WRONG),
        (STREAM, {**ANSWER, "finishes": ["length", "length"]}, Verdict.WRONG),
        (STREAM, {**ANSWER, "finishes": []}, Verdict.WRONG),
        (STREAM, {"status": 200, "text": "ax", "broken": "ReadError"}, Verdict.WRONG),
        (STREAM, {"status": 200, "text": "ab", "broken": "ReadError"}, Verdict.BROKEN),
        (STREAM, {"status": 200, "text": "ab", "error": "the engine died"}, Verdict.ERROR),
        (STREAM, {"status": 200, "text": "ab"}, Verdict.UNCLEAR),
        (STREAM, {**ANSWER, "error": "the engine died"}, Verdict.BOTH),
        (WHOLE, {"status": 500, "error": "the engine died"}, Verdict.ERROR),
        (WHOLE, {"status": 500}, Verdict.UNCLEAR),
        (WHOLE, {"status": 404}, Verdict.UNCLEAR),
        (WHOLE, {"broken": "ConnectError"}, Verdict.BROKEN),
        (WHOLE, {"late": True}, Verdict.LATE),
        (ABORTED, {"status": 200, "text": "a", "left": True}, Verdict.LEFT),
        (ABORTED, {"status": 200, "text": "b", "left": True}, Verdict.WRONG),
        (INVALID, {"status": 400, "error": "no"}, Verdict.REFUSED),
        (INVALID, {"status": 500, "error": "oh"}, Verdict.ERROR),
        (INVALID, {"status": 200, "done": True}, Verdict.ACCEPTED),
        (INVALID, {"status": 400}, Verdict.UNCLEAR),
    ],
)
def test_verdicts(ask: Ask, values: dict[str, Any], verdict: Verdict) -> None:
    assert judge(ask, Reply(0, 0.0, 1.0, **values)) is verdict
