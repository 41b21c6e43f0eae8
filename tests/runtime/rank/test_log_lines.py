from __future__ import annotations

import json
import logging
import re
import sys

from wavepp_worker.log_form import of_request
from wavepp_worker.runtime.rank.log_lines import LogLines


def record(text: str, *values: object) -> logging.LogRecord:
    made = logging.LogRecord("wavepp_worker.somewhere", logging.WARNING, "file.py", 1, text, values, None)
    made.created = 1_700_000_000.25
    return made


def test_a_line_says_when_how_grave_who_and_what() -> None:
    line = LogLines(3, as_json=False).format(record("%d blocks are damaged", 2))
    assert line == "2023-11-14T22:13:20.250000Z  WARN wavepp_worker.somewhere: 2 blocks are damaged rank=3"


def test_a_line_of_json_is_one_line_whatever_it_says() -> None:
    made = record("a disk\nfailed")
    try:
        raise OSError("no room")
    except OSError:
        made.exc_info = sys.exc_info()
    line = LogLines(0, as_json=True).format(made)
    assert "\n" not in line
    told = json.loads(line)
    assert told["time"] == "2023-11-14T22:13:20.250000Z"
    assert (told["level"], told["target"], told["rank"]) == ("WARN", "wavepp_worker.somewhere", 0)
    assert re.search(r"^a disk\nfailed\nTraceback.*no room$", told["message"], re.DOTALL)


def test_a_line_of_json_about_a_request_has_the_id_that_its_client_knows() -> None:
    made = record("request %s failed", "my-id-17")
    vars(made).update(of_request("my-id-17"))
    assert json.loads(LogLines(2, as_json=True).format(made))["request_id"] == "my-id"
    assert "request_id" not in json.loads(LogLines(2, as_json=True).format(record("no request")))
