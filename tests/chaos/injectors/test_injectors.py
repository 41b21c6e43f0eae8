"""Faults are done to exactly the process or file that is meant, and undone."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.injectors import disk, flood, limits, signals
from tests.chaos.processes import listening_ports


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, wanted: str) -> None:
    deadline = time.monotonic() + 10
    while (state(pid) == "T") != (wanted == "T"):
        assert time.monotonic() < deadline, f"still {state(pid)}"
        time.sleep(0.01)


def test_a_stopped_process_goes_on_afterwards(victim: subprocess.Popen[bytes]) -> None:
    with signals.stopped(victim.pid):
        wait_for_state(victim.pid, "T")
    wait_for_state(victim.pid, "S")


def test_a_stopped_process_may_be_killed_meanwhile(victim: subprocess.Popen[bytes]) -> None:
    with signals.stopped(victim.pid):
        signals.send(victim.pid, signal.SIGKILL)
        assert victim.wait(10) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        signals.send(victim.pid, signal.SIGKILL)


def test_limits_are_lowered_and_put_back(victim: subprocess.Popen[bytes]) -> None:
    for lowered, which in (
        (limits.few_descriptors, resource.RLIMIT_NOFILE),
        (limits.little_memory, resource.RLIMIT_AS),
    ):
        before = resource.prlimit(victim.pid, which)
        with lowered(victim.pid):
            soft, hard = resource.prlimit(victim.pid, which)
            assert hard == before[1]
            assert 0 < soft < 1 << 40
        assert resource.prlimit(victim.pid, which) == before


def test_descriptors_run_out_to_the_last_one_whatever_numbers_were_given_back() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    for each in held[::2]:
        os.close(each)
    opened: list[int] = []
    try:
        with limits.few_descriptors(os.getpid(), 3):
            for _ in range(3):
                opened.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(OSError, match="Too many open files"):
                os.open(os.devnull, os.O_RDONLY)
    finally:
        for each in (*held[1::2], *opened):
            os.close(each)


def test_a_flood_holds_silent_connections_and_lets_go() -> None:
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=2 * flood.CONNECTIONS) as server:
            address = server.getsockname()
            assert address in listening_ports(os.getpid())
            async with flood.idle_connections([address]):
                held = [server.accept()[0] for _ in range(flood.CONNECTIONS)]
            for each in held:
                assert each.recv(1) == b""
                each.close()

    asyncio.run(check())


def test_files_are_damaged_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    path.write_bytes(bytes(1 << 16))
    disk.flip(path, random.Random(1))
    changed = path.read_bytes()
    assert len(changed) == 1 << 16
    assert 0 < sum(map(bool, changed)) <= disk.FLIPS
    disk.truncate(path)
    assert path.stat().st_size == 1 << 15
    with path.open("rb"):
        assert disk.file_of(os.getpid(), tmp_path) == path
    assert disk.file_of(os.getpid(), tmp_path) is None


def test_a_full_disk_has_room_again_afterwards(tmp_path: Path) -> None:
    with disk.small_disk(tmp_path / "disk", 2) as mounted:
        if not mounted:
            pytest.skip("a small file system can be mounted by root alone")
        path = tmp_path / "disk" / "tier"
        path.write_bytes(b"x" * (1 << 20))
        with disk.full(path.parent, path):
            assert path.read_bytes()[-1] == 0
            with path.open("r+b", buffering=0) as file:
                file.seek(1 << 19)
                with pytest.raises(OSError, match="No space left"):
                    file.write(b"x" * (1 << 19))
        path.write_bytes(b"x" * (1 << 20))
    assert not (tmp_path / "disk" / "tier").exists()
