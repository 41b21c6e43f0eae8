from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import ports
from wavepp_worker.serve.ports import HeldPorts, is_free

HOST = "127.0.0.1"

_OTHER_LAUNCHER = """
import sys
from wavepp_worker.serve.ports import HeldPorts
held = HeldPorts()
print(held.http("127.0.0.1", None, "--port", int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(HOST, port)
        assert not HeldPorts().hold(HOST, port)
    assert is_free(HOST, port)


def test_ports_that_are_held_are_chosen_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldPorts()
    (first,) = held.choose(1)
    monkeypatch.setattr(ports, "_FIRST", first)
    monkeypatch.setattr(ports, "_LAST", first + 1)
    for chooser in (held, HeldPorts()):
        with pytest.raises(ConfigError, match=r"1 free ports are needed between .* 0 are free"):
            chooser.choose(1)
    held.close()
    assert HeldPorts().choose(1) == [first]


@pytest.mark.parametrize("wide", ["0.0.0.0", "::"])
def test_a_port_that_is_held_on_all_addresses_is_held_on_each(wide: str) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    first, second = HeldPorts(), HeldPorts()
    assert first.hold(wide, port)
    assert not second.hold(HOST, port)
    first.close()
    assert second.hold(HOST, port)
    assert not first.hold(wide, port)
    assert first.hold("127.0.0.2", port), "nobody else listens there"


def test_another_launcher_leaves_a_port_alone_before_and_while_its_process_listens() -> None:
    with socket.create_server((HOST, 0)) as listener:
        default = listener.getsockname()[1] + 1
    command = [sys.executable, "-c", _OTHER_LAUNCHER, str(default)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        held = HeldPorts()
        ours = held.http(HOST, None, "--port", default)
        assert ours > theirs
        with pytest.raises(ConfigError, match=f"--port: port {theirs} .* is held by another dynamo serve"):
            held.http(HOST, theirs, "--port", default)
        with socket.create_server((HOST, ours)):
            other.communicate()
    # Whatever becomes of a launcher, it holds nothing then.
    assert held.http(HOST, theirs, "--port", default) == theirs


def test_the_default_port_gives_way_and_an_asked_one_does_not() -> None:
    held = HeldPorts()
    with socket.create_server((HOST, 0)) as listener:
        taken = listener.getsockname()[1]
        assert held.http(HOST, None, "--port", taken) > taken
        with pytest.raises(ConfigError, match=f"^Front.http_port: port {taken} of 127.0.0.1 is in use"):
            held.http(HOST, taken, "Front.http_port", 8000)
    for none in (0, 65536):
        with pytest.raises(ConfigError, match=f"^--port: {none} is not a port number"):
            held.http(HOST, none, "--port", 8000)
