from __future__ import annotations

import time

import pytest
from wavepp_worker.log_form import (
    FORMAT_VARIABLE,
    JSON_VARIABLE,
    LOCAL_VARIABLE,
    line_time,
    lines_are_json,
)


@pytest.mark.parametrize(
    ("value", "json"),
    [("1", True), (" 1 ", True), ("True", True), ("on", True), ("yes", True), ("", False), ("0", False)],
)
def test_whether_lines_are_json_is_read_as_dynamo_reads_it(value: str, json: bool) -> None:
    assert lines_are_json({JSON_VARIABLE: value}) is json
    assert not lines_are_json({})


@pytest.mark.parametrize(
    ("form", "older", "json"),
    [
        ("jsonl", "", True),
        (" JSONL ", "0", True),
        ("readable", "1", False),
        ("other", "1", False),
        (" ", "1", True),
    ],
)
def test_from_1_5_on_another_variable_counts_before(
    form: str, older: str, json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {FORMAT_VARIABLE: form, JSON_VARIABLE: older}
    monkeypatch.setattr("wavepp_worker.log_form.dynamo_is_at_least", lambda *_: True)
    assert lines_are_json(environment) is json
    monkeypatch.setattr("wavepp_worker.log_form.dynamo_is_at_least", lambda *_: False)
    assert lines_are_json(environment) is (older == "1"), "Dynamo's own lines are as the older one says"


def test_times_are_in_utc_unless_dynamos_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCAL_VARIABLE, raising=False)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert line_time(1_700_000_000.25) == "2023-11-14T22:13:20.250000Z"
        monkeypatch.setenv(LOCAL_VARIABLE, "1")
        assert line_time(1_700_000_000.25) == "2023-11-15T07:13:20.250000+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()
