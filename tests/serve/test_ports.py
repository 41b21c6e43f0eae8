from __future__ import annotations

import socket

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import ports
from wavepp_worker.serve.ports import free_ports, http_port, is_free


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)


def test_free_ports_leave_out_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(1)[0]
    monkeypatch.setattr(ports, "_FIRST", first)
    monkeypatch.setattr(ports, "_LAST", first + 1)
    assert free_ports(1) == [first]
    with pytest.raises(ConfigError, match=r"1 free ports are needed between .* 0 are free"):
        free_ports(1, taken=[first])


def test_the_default_port_gives_way_and_an_asked_one_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert http_port("127.0.0.1", None, "--port", taken) > taken
        with pytest.raises(ConfigError, match=f"^Front.http_port: port {taken} of 127.0.0.1 is in use"):
            http_port("127.0.0.1", taken, "Front.http_port", 8000)
    for none in (0, 65536):
        with pytest.raises(ConfigError, match=f"^--port: {none} is not a port number"):
            http_port("127.0.0.1", none, "--port", 8000)
