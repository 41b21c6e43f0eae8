"""The processes of one service: as many as there are at the start, and those that a planner asks for later."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.serve.environment import SYSTEM_HOST_VARIABLE, base_environment
from wavepp_worker.serve.flag_check import check_flags
from wavepp_worker.serve.gpus import Allotment
from wavepp_worker.serve.graph import Graph, Service
from wavepp_worker.serve.http_address import reachable
from wavepp_worker.serve.listen_addresses import check_listen_addresses, written_variable
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.serve.probed_path import HEALTH_VARIABLE, check_probed_path
from wavepp_worker.serve.process import Process
from wavepp_worker.serve.replica_values import replica_values
from wavepp_worker.serve.settings import ServiceSettings, to_flags
from wavepp_worker.serve.worker_ports import VARIABLE, check_flag_ports, worker_port

OURS = "wavepp_worker."
"""What the modules begin with whose workers say what they are."""


@dataclass(frozen=True)
class Means:
    """What the processes of a run share of the machine.

    Attributes:
        held: their ports.
        gpus: those that are not given out.
        disks: what each takes of disks.
    """

    held: HeldPorts = field(default_factory=HeldPorts)
    gpus: Allotment = field(default_factory=Allotment)
    disks: list[object] = field(default_factory=list)


class Replicas:
    """Makes the processes of one service.

    A number keeps its ports for the whole run, and with them its directories; GPUs go to whoever comes next.
    """

    def __init__(
        self,
        graph: Graph,
        service: Service,
        own: ServiceSettings,
        shape: ModelShape | None,
        means: Means,
        *,
        most: int,
        address: tuple[str, int] | None = None,
    ) -> None:
        """
        Args:
            own: with the flags that all replicas have.
            shape: of the model it is given, if it is given one.
            most: replicas that there may be at a time; where there may be several, each has directories of its own.
            address: URL and port of a frontend.
        """
        self.service = service
        self.own = own
        self.most = most
        self._graph = graph
        self._shape = shape
        self._means = means
        self._address = address
        self._ports: dict[int, int] = {}
        self._devices: dict[int, list[str]] = {}
        self._disks: dict[int, list[object]] = {}

    def make(self, replica: int) -> Process:
        """A process that can be started now.

        Raises:
            ConfigError: it cannot, for want of ports, GPUs, memory or room on a disk, or as its flags are wrong; names
                the key.
        """
        service, own = self.service, self.own
        flags = replica_values(service, own.flags, replica, self.most)
        url, port = self._address or ("", self._port(replica, flags))
        env = {VARIABLE: str(port)} if service.kind == "worker" else {}
        if self._graph.folder is not None:
            found = (str(self._graph.folder), os.environ.get("PYTHONPATH"))
            env["PYTHONPATH"] = os.pathsep.join(filter(None, found))
        gpus, disks = self._means.gpus, self._means.disks
        devices = gpus.take(own.gpus, f"{service.name}.ServiceArgs.resources.gpu")
        before = len(disks)
        try:
            if devices:
                env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            env |= replica_values(service, own.envs, replica, self.most)
            whole = {**base_environment(), **env}
            check_listen_addresses(whole, service.name, own.envs)
            if service.kind == "worker":
                check_probed_path(whole, written_variable(HEALTH_VARIABLE, service.name, own.envs))
            argv = to_flags(flags)
            check_flags(service, argv, self._shape, disks, self._graph.services, whole)
        except BaseException:
            gpus.give_back(devices)
            raise
        self._devices[replica], self._disks[replica] = devices, disks[before:]
        return Process(
            service=service.name,
            replica=replica,
            kind=service.kind,
            argv=(sys.executable, "-m", service.module, *argv),
            env=env,
            port=port,
            url=url or self._worker_url(port),
            describes=service.kind == "worker" and service.module.startswith(OURS),
        )

    def release(self, replica: int) -> None:
        """Its process is gone: others may have its GPUs and the room that it had yet to take."""
        self._means.gpus.give_back(self._devices.pop(replica, []))
        for use in self._disks.pop(replica, []):
            self._means.disks.remove(use)

    def _port(self, replica: int, flags: dict[str, object]) -> int:
        if replica not in self._ports:
            port = worker_port(self.service, self.own, replica, self.most, self._means.held)
            check_flag_ports(self.service, flags, self._means.held)
            self._ports[replica] = port
        return self._ports[replica]

    def _worker_url(self, port: int) -> str:
        """Where a worker says how it is: on loopback, unless its environment has Dynamo listen elsewhere."""
        named = (self.own.envs.get(SYSTEM_HOST_VARIABLE), os.environ.get(SYSTEM_HOST_VARIABLE), "127.0.0.1")
        return f"http://{reachable(next(filter(None, named)))}:{port}"
