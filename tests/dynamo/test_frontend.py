from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.dynamo import frontend
from wavepp_worker.dynamo.frontend import FrontendArgs, vocabulary
from wavepp_worker.errors import ConfigError, PlaneUnreached

from tests.support.certificates import loopback_certificates


def test_the_vocabulary_comes_from_the_model(text_model: Path, tmp_path: Path) -> None:
    assert vocabulary(text_model) == 258
    assert vocabulary(None) is None
    with pytest.raises(ConfigError, match="--model"):
        vocabulary(tmp_path)


def test_the_command_line_is_the_frontends_and_the_model() -> None:
    args = FrontendArgs.parse(["--http-port", "8123", "--router-mode", "kv", "--model", "/m"])
    assert (args.port, args.model) == (8123, Path("/m"))
    assert args.rest == ("--http-port", "8123", "--router-mode", "kv")
    with pytest.raises(ConfigError, match="--nonsense"):
        FrontendArgs.parse(["--nonsense", "1"])


def test_names_of_what_is_served_are_given_one_by_one_or_together() -> None:
    assert FrontendArgs.parse([]).served == frozenset()
    args = FrontendArgs.parse(["--served-model-name", "a, b", "--served-model-name=c"])
    assert (args.served, args.rest) == ({"a", "b", "c"}, ())


def test_the_certificate_is_the_public_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By flags or by Dynamo's variables; the frontend behind it is not told of it."""
    authority, certificate, key = loopback_certificates(tmp_path)
    flags = ["--tls-cert-path", str(certificate), "--tls-key-path", str(key)]
    args = FrontendArgs.parse(["--http-port", "8123", *flags])
    assert (args.certificate, args.rest) == ((certificate, key), ("--http-port", "8123"))
    with pytest.raises(ConfigError, match="must be provided together"):
        FrontendArgs.parse(flags[:2])
    with pytest.raises(ConfigError, match=r"--tls-cert-path, --tls-key-path: .* no certificate with its key"):
        FrontendArgs.parse(["--tls-cert-path", str(authority), "--tls-key-path", str(key)])
    monkeypatch.setenv("DYN_TLS_CERT_PATH", str(certificate))
    monkeypatch.setenv("DYN_TLS_KEY_PATH", str(key))
    assert FrontendArgs.parse([]).certificate == (certificate, key)


def test_a_frontend_that_could_not_take_answers_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DYN_TCP_RESPONSE_STREAM_HOST", "eth99")
    monkeypatch.setattr(sys, "argv", ["frontend"])
    with pytest.raises(SystemExit, match="2"):
        frontend.main()
    assert capsys.readouterr().err.startswith("error: DYN_TCP_RESPONSE_STREAM_HOST: 'eth99' is ")


@pytest.mark.parametrize(
    ("ended_by", "code"),
    [(asyncio.CancelledError(), 0), (ConfigError("no"), 2), (PlaneUnreached("gone"), 1)],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_why_a_frontend_ended(
    ended_by: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(serving: Coroutine[Any, Any, None], **_: Any) -> None:
        serving.close()
        raise ended_by

    monkeypatch.setattr(sys, "argv", ["frontend"])
    monkeypatch.setattr(frontend.uvloop, "run", run)
    ended = 0
    try:
        frontend.main()
    except SystemExit as exited:
        ended = int(exited.code or 0)
    assert ended == code
