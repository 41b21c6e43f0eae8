"""What a control's body may say, and what is told who says something else."""

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.control_bodies import check_names, seconds
from wavepp_worker.errors import InvalidRequest


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    check_names("c", {"a": 1}, {"a": "which", "b": "whether"})
    with pytest.raises(InvalidRequest, match=r"^x: unknown; c takes a, which and b, whether$"):
        check_names("c", {"y": 1, "x": 1, "a": 1}, {"a": "which", "b": "whether"})
    with pytest.raises(InvalidRequest, match=r"^x: unknown; c takes nothing$"):
        check_names("c", {"x": 1}, {})


@pytest.mark.parametrize(("value", "read"), [(0, 0.0), (2.5, 2.5), (9, 9.0)])
def test_seconds_within_the_bound_are_read(value: float, read: float) -> None:
    assert seconds({"s": value}, "s", 1.0, 9.0) == read
    assert seconds({}, "s", 1.0, 9.0) == 1.0


@pytest.mark.parametrize("value", [-1, 9.5, "3", None, True, float("nan"), float("inf"), [3]])
def test_what_is_no_such_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"should be a number of seconds from 0 to 9$"):
        seconds({"s": value}, "s", 1.0, 9.0)
