"""Where KV is handed over by workers that other hosts may find."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.dynamo import args as args_module
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.dynamo.handoff_host import handoff_host, is_loopback, routable_address
from wavepp_worker.errors import ConfigError

OWN = "198.51.100.7"


def host_of(
    host: str = "127.0.0.1", *, given: bool = False, discovery: str = "etcd", at: str | None = None
) -> str:
    return handoff_host(host, given=given, discovery=discovery, requests_at=at, routable=lambda: OWN).host


def test_a_default_follows_where_requests_are_taken() -> None:
    assert host_of() == OWN
    assert host_of(at="198.51.100.8") == "198.51.100.8"
    assert host_of(discovery="kubernetes") == OWN
    for alone in ({"discovery": "file"}, {"at": "127.0.0.1"}, {"at": "localhost"}, {"at": "::1"}):
        assert host_of(**alone) == "127.0.0.1"  # type: ignore[arg-type]


def test_what_was_asked_for_counts_or_is_refused() -> None:
    assert host_of("198.51.100.9", given=True) == "198.51.100.9"
    assert host_of("127.0.0.2", given=True, at="127.0.0.2") == "127.0.0.2"
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        with pytest.raises(
            ConfigError, match=rf"^host: {host} reaches this machine alone, .*; give {OWN}, this machine's"
        ):
            host_of(host, given=True)
    with pytest.raises(
        ConfigError, match=r"; give this machine's address, or set DYN_TCP_RPC_HOST=127\.0\.0\.1 if "
    ):
        handoff_host("127.0.0.1", given=False, discovery="etcd", requests_at=None, routable=lambda: None)


def test_a_routable_address_is_none_of_loopback() -> None:
    found = routable_address()
    assert found is None or not is_loopback(found)
    assert not is_loopback("no.such.host")


def test_a_worker_says_what_was_chosen_and_which_flag_is_wrong(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DYN_TCP_RPC_HOST", raising=False)
    # An address of this machine that the check for loopback takes for another's.
    monkeypatch.setattr(args_module, "routable_address", lambda: "0.0.0.0")
    words = ["--model", str(tiny_llama), "--kv-tokens", "8192", "--discovery-backend", "etcd"]
    assert PrefillArgs.parse_or_exit(words).engine.host == "0.0.0.0"
    assert capsys.readouterr().err.startswith(
        "note: KV is handed over at 0.0.0.0 (host), as others find this worker by "
    )
    assert AggArgs.parse_or_exit(words).engine.host == "127.0.0.1"
    with pytest.raises(SystemExit):
        DecodeArgs.parse_or_exit([*words, "--host", "127.0.0.1"])
    assert capsys.readouterr().err.startswith(
        "error: --host: 127.0.0.1 reaches this machine alone, but workers of "
    )
    monkeypatch.setenv("DYN_WAVEPP_HOST", "127.0.0.1")
    with pytest.raises(SystemExit):
        DecodeArgs.parse_or_exit(words)
    assert capsys.readouterr().err.startswith("error: DYN_WAVEPP_HOST: 127.0.0.1 reaches this machine alone")
