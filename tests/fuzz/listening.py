"""Where the processes of a run can be reached: TCP ports and socket files, and by whom. Reads /proc."""

from __future__ import annotations

import ipaddress
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
_ACCEPTING = 0x10000
"""Flag of a Unix socket that listens (``__SO_ACCEPTCON``)."""


@dataclass(frozen=True, order=True)
class Listening:
    """One address that a process of the run listens on.

    Attributes:
        process: what the process is, such as "PrefillWorker" or "rank".
        host: IP address; empty for a socket file.
        port: 0 for a socket file.
        path: of a socket file, else empty.
    """

    process: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"{self.process} {self.path or f'{self.host}:{self.port}'}"


def listening(pids: dict[int, str]) -> list[Listening]:
    """Every address that processes listen on.

    Args:
        pids: what each process is.
    """
    found = set()
    for pid, process in pids.items():
        inodes = _socket_inodes(pid)
        for host, port, inode in _tcp(pid):
            if inode in inodes:
                found.add(Listening(process, host, port, ""))
        for path, inode in _unix(pid):
            if inode in inodes:
                found.add(Listening(process, "", 0, path))
    return sorted(found)


def reachable_by_others(path: str) -> bool:
    """Whether another user of the machine could open a socket file: no directory above it keeps them out."""
    if not path.startswith("/"):
        return True  # abstract: everybody in the network namespace
    return all(os.stat(parent).st_mode & stat.S_IXOTH for parent in Path(path).parents)


def _socket_inodes(pid: int) -> set[int]:
    inodes = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(entry)
            if name.startswith("socket:["):
                inodes.add(int(name[8:-1]))
    except OSError:
        pass
    return inodes


def _tcp(pid: int) -> list[tuple[str, int, int]]:
    found = []
    for table in ("tcp", "tcp6"):
        for words in _rows(Path(f"/proc/{pid}/net/{table}")):
            address, port = words[1].split(":")
            if words[3] == _LISTEN:
                found.append((_host(address), int(port, 16), int(words[9])))
    return found


def _host(digits: str) -> str:
    """The kernel writes an address as 32-bit words in the machine's byte order."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ipaddress.ip_address(b"".join(words)))


def _unix(pid: int) -> list[tuple[str, int]]:
    rows = _rows(Path(f"/proc/{pid}/net/unix"))
    return [(words[7], int(words[6])) for words in rows if len(words) > 7 and int(words[3], 16) & _ACCEPTING]


def _rows(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()[1:]]
    except OSError:
        return []
