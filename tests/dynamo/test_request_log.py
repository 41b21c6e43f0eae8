"""Which of a worker's lines are written here, and what is in them; through the launcher as well."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from wavepp_worker.dynamo.live_requests import LiveRequests
from wavepp_worker.dynamo.request_log import TraceIds, _about_no_request, log_requests
from wavepp_worker.log_form import JSON_VARIABLE, of_request
from wavepp_worker.serve.log import Log

IDS = TraceIds("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
logger = logging.getLogger("wavepp_worker.somewhere")


class Kept(logging.Handler):
    """Stands for Dynamo's handler."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def dynamos() -> Iterator[Kept]:
    """Dynamo's handler alone, as in a worker; what a test changes is undone."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers[:] = [kept := Kept()]
    yield kept
    # pytest's handlers came meanwhile; they are the same in all tests.
    for handler in (*before, *root.handlers):
        handler.filters[:] = [each for each in handler.filters if each is not _about_no_request]
    root.handlers[:] = before


def test_a_line_about_a_request_has_its_ids(dynamos: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveRequests()
    log_requests({JSON_VARIABLE: "1"}, live.trace_of)
    with live.entered("my-id", lambda: False, IDS):
        for name in ("my-id", "my-id-2"):
            logger.warning("request %s waits\nfor long", name, extra=of_request(name))
        logger.warning("about none")
    logger.warning("over", extra=of_request("my-id"))
    first, again, over = map(json.loads, capsys.readouterr().err.splitlines())
    assert first.keys() == {"time", "level", "target", "message", "request_id", "trace_id", "span_id"}
    assert (first["level"], first["target"]) == ("WARN", "wavepp_worker.somewhere")
    assert first["message"] == "request my-id waits\nfor long"
    assert (first["request_id"], first["trace_id"], first["span_id"]) == ("my-id", *IDS)
    assert (again["request_id"], again["trace_id"]) == ("my-id", IDS.trace_id), "an attempt of it"
    assert (over["request_id"], "trace_id" in over) == ("my-id", False)
    assert dynamos.messages == ["about none"], "each line is written once"


def test_where_lines_are_text_all_are_dynamos(dynamos: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    log_requests({}, lambda _: None)
    logger.warning("request r waits", extra=of_request("r"))
    assert dynamos.messages == ["request r waits"]
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("dynamos")
def test_the_launcher_passes_it_on_with_the_name_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    live = LiveRequests()
    log_requests({JSON_VARIABLE: "1"}, live.trace_of)
    with live.entered("my-id", lambda: False, IDS):
        logger.warning("request my-id waits", extra=of_request("my-id"))
    said = capfd.readouterr().err
    monkeypatch.setenv(JSON_VARIABLE, "1")
    log = Log(["DecodeWorker:0"])
    log.line("DecodeWorker:0", said.rstrip("\n"), settled=True)
    log.close()
    (line,) = capfd.readouterr().out.splitlines()
    passed_on = json.loads(line)
    assert passed_on == {**json.loads(said), "process": "DecodeWorker:0"}
    assert (passed_on["request_id"], passed_on["trace_id"]) == ("my-id", IDS.trace_id)


def test_a_line_that_nests_deeply_is_passed_on_as_text(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as the rest of a long line, in which a client's words stand."""
    monkeypatch.setenv(JSON_VARIABLE, "1")
    log = Log(["DecodeWorker:0"])
    log.line("DecodeWorker:0", 10_000 * "[", settled=True)
    log.close()
    assert json.loads(capfd.readouterr().out)["message"] == 10_000 * "["
