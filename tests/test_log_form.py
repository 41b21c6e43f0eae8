from __future__ import annotations

import pytest
from wavepp_worker.log_form import JSON_VARIABLE, line_time, lines_are_json


@pytest.mark.parametrize(
    ("value", "json"), [("1", True), ("True", True), ("on", True), ("yes", True), ("", False), ("0", False)]
)
def test_whether_lines_are_json_is_read_as_dynamo_reads_it(value: str, json: bool) -> None:
    assert lines_are_json({JSON_VARIABLE: value}) is json
    assert not lines_are_json({})


def test_times_are_in_utc() -> None:
    assert line_time(1_700_000_000.25) == "2023-11-14T22:13:20.250000Z"
