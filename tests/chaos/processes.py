"""The processes of a running graph: who is who, what each holds, and where each listens. Reads /proc."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.faults import Role
from tests.chaos.leaks import Held
from tests.support.graph_process import RunningGraph

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SERVICES = {
    Role.PREFILL: "PrefillWorker",
    Role.DECODE: "DecodeWorker",
    Role.FRONTEND: "Frontend",
    Role.QUEUE: "NatsServer",
}
RANK_MODULE = "wavepp_worker.runtime.rank.main"


def command(pid: int) -> str:
    """The command line; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def pids_of(graph: RunningGraph, role: Role) -> list[int]:
    """Living processes of a role, in order; of the graph's services only those that say they are ready."""
    if role is Role.RANK:
        return [pid for pid in sorted(graph.pids()) if RANK_MODULE in command(pid)]
    return [entry["pid"] for entry in graph.processes(SERVICES[role]) if entry["pid"] and entry["ready"]]


def roles_down(graph: RunningGraph) -> list[Role]:
    """Roles of the services of which some process does not say that it is ready."""
    down = {entry["service"] for entry in graph.state().get("processes", ()) if not entry["ready"]}
    return [role for role, service in SERVICES.items() if service in down]


def descriptors(pid: int) -> list[str]:
    """What each open descriptor of a process is; empty if it is gone."""
    found = []
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    for link in links:
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found


def held(pid: int, role: str, now: float) -> Held | None:
    """What a process holds at ``now``; None if it is gone."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (OSError, IndexError):
        return None
    return Held(round(now, 2), pid, role, len(descriptors(pid)), threads, resident)


def holdings(graph: RunningGraph, now: float) -> list[Held]:
    """What the launcher, every service's process and every rank hold."""
    named = [(graph.process.pid, "launcher")]
    for entry in graph.state().get("processes", ()):
        if entry["pid"]:
            named.append((entry["pid"], entry["service"]))
    named += [(pid, "rank") for pid in pids_of(graph, Role.RANK)]
    return [found for pid, role in named if (found := held(pid, role, now)) is not None]


def listening_ports(pid: int) -> list[tuple[str, int]]:
    """Addresses on loopback that a process listens on with TCP."""
    sockets = {name[len("socket:[") : -1] for name in descriptors(pid) if name.startswith("socket:[")}
    found = []
    for table, host in (("tcp", "127.0.0.1"), ("tcp6", "::1")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append((host, int(fields[1].rpartition(":")[2], 16)))
    return found
