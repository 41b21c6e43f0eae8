"""Addresses and the port in Dynamo's variables are checked before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import listen_addresses
from wavepp_worker.serve.cli import app
from wavepp_worker.serve.environment import LOOPBACK, SYSTEM_HOST_VARIABLE
from wavepp_worker.serve.listen_addresses import (
    SYSTEM_PORT_VARIABLE,
    check_listen_addresses,
    check_system_port,
)

from tests.support.graph_process import REPOSITORY

REQUESTS, ANSWERS, SYSTEM = LOOPBACK


def refused(env: dict[str, str], own: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_listen_addresses(env, "Worker", own or {})
    return str(caught.value)


@pytest.mark.parametrize(
    "env",
    [
        {},
        LOOPBACK,
        {REQUESTS: "0.0.0.0", SYSTEM: "localhost"},
        {REQUESTS: "127.0.0.9", SYSTEM: ""},
        {ANSWERS: ""},
    ],
)
def test_addresses_of_this_machine_are_taken(env: dict[str, str]) -> None:
    check_listen_addresses(env, "Worker", {})


@pytest.mark.parametrize("text", ["localhost", "lo", "::1", "[127.0.0.1]", "[::x]", ""])
def test_requests_are_taken_at_an_address_in_numbers(text: str) -> None:
    assert refused({REQUESTS: text}).startswith(f"{REQUESTS}: {text!r} is no address that Dynamo takes; ")


@pytest.mark.parametrize("name", [REQUESTS, SYSTEM])
def test_an_address_of_another_machine_is_refused(name: str) -> None:
    sentence = f"{name}: 203.0.113.7 is not an address of this machine; give one that is"
    assert refused({name: "203.0.113.7"}) == sentence
    own = {name: "203.0.113.7"}
    assert refused(own, own) == f"Worker.ServiceArgs.envs.{sentence}"


def test_answers_are_taken_at_an_interface_and_with_a_later_dynamo_at_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = refused({ANSWERS: "eth99"})
    assert said.startswith(f"{ANSWERS}: 'eth99' is no network interface of this machine, which has ")
    assert "lo" in said
    assert refused({ANSWERS: "127.0.0.1"}).startswith(f"{ANSWERS}: '127.0.0.1' is no network interface")
    monkeypatch.setattr(listen_addresses, "dynamo_is_at_least", lambda *_: True)
    check_listen_addresses({ANSWERS: "127.0.0.1"}, "Worker", {})
    assert refused({ANSWERS: "203.0.113.7"}).startswith(f"{ANSWERS}: 203.0.113.7 is not an address of this")
    assert "neither an address nor a network interface" in refused({ANSWERS: "eth99"})


def test_an_interface_whose_last_address_nobody_can_listen_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "if_inet6"
    file.write_text(
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
    )
    monkeypatch.setattr(listen_addresses, "_IPV6_ADDRESSES", file)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "eth1")])
    said = refused({ANSWERS: "eth0"})
    assert said.startswith(
        f"{ANSWERS}: Dynamo before 1.5 listens at the last address of eth0, fe80::fc:ff:fe00:1, "
    )
    assert f"set it to nothing ({ANSWERS}=)" in said
    for name in ("lo", "eth1"):
        check_listen_addresses({ANSWERS: name})
    monkeypatch.setattr(listen_addresses, "dynamo_is_at_least", lambda *_: True)
    check_listen_addresses({ANSWERS: "eth0"})


@pytest.mark.parametrize("text", ["", "-1", "0", "9100", "32767"])
def test_a_port_of_sixteen_bits_with_a_sign_is_taken(text: str) -> None:
    check_listen_addresses({SYSTEM_PORT_VARIABLE: text})


@pytest.mark.parametrize("text", ["40001", "32768", "http"])
def test_another_is_refused_before_dynamo_ends_with_a_traceback(text: str) -> None:
    sentence = (
        rf"^DYN_SYSTEM_PORT: '{text}' is no port that Dynamo takes here; give one from 1 to 32767, 0 for "
    )
    with pytest.raises(ConfigError, match=sentence):
        check_listen_addresses({SYSTEM_PORT_VARIABLE: text})


@pytest.mark.parametrize("host", ["127.0.0.1", "", None])
def test_a_port_at_which_somebody_listens_is_refused(host: str | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        env = {SYSTEM_PORT_VARIABLE: port} | ({} if host is None else {SYSTEM_HOST_VARIABLE: host})
        with pytest.raises(
            ConfigError, match=rf"^DYN_SYSTEM_PORT: port {port} of {host or '0.0.0.0'} is in use"
        ):
            check_system_port(env)
    check_system_port(env)


@pytest.mark.parametrize("text", ["", "-1", "0"])
def test_no_port_and_any_that_is_free_are_taken(text: str) -> None:
    check_system_port({SYSTEM_PORT_VARIABLE: text})


@pytest.mark.parametrize("name", LOOPBACK)
@pytest.mark.usefixtures("in_the_repository")
def test_the_launcher_says_so_before_anything_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "203.0.113.7")
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:agg_wavepp", "--dry-run"])
    assert result.exit_code == 2, result.output
    assert result.output.startswith(f"error: {name}: ")
    assert f"`{name}`" in (REPOSITORY / "docs/deploy.md").read_text()
