"""Ports that workers are given, or ask for."""

from __future__ import annotations

import socket

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PREFILL_WORKER
from wavepp_worker.serve.ports import HeldPorts, is_free
from wavepp_worker.serve.settings import ServiceSettings
from wavepp_worker.serve.worker_ports import check_flag_ports, worker_port

KEY = r"PrefillWorker\.ServiceArgs\.envs\.DYN_SYSTEM_PORT"


def settings(**envs: str) -> ServiceSettings:
    return ServiceSettings(flags={}, asked=frozenset(), workers=2, fewest=1, most=8, envs=envs, gpus=0)


def worker_ports(own: ServiceSettings, ports: HeldPorts) -> list[int]:
    return [worker_port(PREFILL_WORKER, own, replica, 2, ports) for replica in range(2)]


def ten_free() -> int:
    """The first of ten ports in a row that nobody has."""
    while True:
        first = HeldPorts().choose(1)[0] // 10 * 10
        if all(is_free("127.0.0.1", port) for port in range(first, first + 10)):
            return first


def test_free_ports_unless_the_environment_names_them() -> None:
    first = ten_free()
    assert worker_ports(settings(DYN_SYSTEM_PORT=f"{first // 10}{{replica}}"), HeldPorts()) == [
        first,
        first + 1,
    ]
    assert len(set(worker_ports(settings(), HeldPorts()))) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("TAKEN", "is the port of several processes; write {replica}"),
        ("4000{replica}", "'40000' is not a port number between 1 and 32767"),
        ("x{replica}", "'x0' is not a port number"),
    ],
)
def test_ports_of_the_environment_that_cannot_be(text: str, why: str) -> None:
    ports = HeldPorts()
    (taken,) = ports.choose(1)
    with pytest.raises(ConfigError, match=f"^{KEY}: .*{why}"):
        worker_ports(settings(DYN_SYSTEM_PORT=text.replace("TAKEN", str(taken))), ports)


def test_ports_that_are_in_use_are_refused_by_their_key() -> None:
    with socket.create_server(("127.0.0.1", HeldPorts().choose(1)[0])) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^{KEY}: port {port} is in use"):
            worker_ports(settings(DYN_SYSTEM_PORT=str(port)), HeldPorts())
        with pytest.raises(
            ConfigError, match=rf"^PrefillWorker\.bootstrap_port: port {port} of 127\.0\.0\.1 is in use"
        ):
            check_flag_ports(PREFILL_WORKER, {"bootstrap_port": port}, HeldPorts())


def test_ports_of_flags_are_kept_apart_from_all_others() -> None:
    port = HeldPorts().choose(1)[0]
    ports = HeldPorts()
    check_flag_ports(PREFILL_WORKER, {"bootstrap_port": str(port)}, ports)
    assert not HeldPorts().hold("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"^PrefillWorker\.bootstrap_port: .*several processes"):
        check_flag_ports(PREFILL_WORKER, {"bootstrap_port": port}, ports)
    with pytest.raises(ConfigError, match=r"^PrefillWorker\.bootstrap_port: '70000' is not a port number"):
        check_flag_ports(PREFILL_WORKER, {"bootstrap_port": 70000}, ports)
    for anyone in ({}, {"bootstrap_port": 0}, {"bootstrap_port": None}):
        check_flag_ports(PREFILL_WORKER, anyone, ports)
