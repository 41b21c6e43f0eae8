"""A decode worker that is killed in the middle of a transfer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.handoff_sides import FIRST

DECODE = """
import asyncio, sys
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret
from tests.support.handoff_sides import Decode, HOST

async def main():
    target = Decode()
    async def allocate(offer):
        print("allocated", flush=True)
        return await target.allocate(offer)
    port, room, secret = int(sys.argv[1]), int(sys.argv[2]), Secret.from_hex(sys.argv[3])
    at = BootstrapAddress(host=HOST, port=port, room=room, secret=secret)
    await target.receiver.receive(at, allocate, 30.0)

asyncio.run(main())
"""


@contextlib.contextmanager
def decode_process(worker: Any, room: int) -> Iterator[subprocess.Popen[str]]:
    at = worker.at(room)
    command = [sys.executable, "-c", DECODE, str(at.port), str(room), at.secret.hex()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_before_the_first_token_the_prefill_is_cancelled(transport: str, prefill: Any, until: Any) -> None:
    worker = prefill(transport)
    worker.server.register(1, worker.offer("a", 40, ready=10))
    with decode_process(worker, 1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "allocated\n"
        asyncio.run(asyncio.sleep(0.3))
        assert worker.sources[0].pending() == 1
        process.send_signal(signal.SIGKILL)
        asyncio.run(until(lambda: worker.cancelled == ["a"], 3))
        asyncio.run(until(lambda: worker.how("a") == ["withdrawn"], 3))
    assert worker.server.pending() == 0


def test_after_the_first_token_the_kv_expires(transport: str, prefill: Any, until: Any) -> None:
    """Nobody is left to say anything; the time limit gives the blocks back."""
    worker = prefill(transport, timeout=1.0)
    worker.server.register(1, worker.offer("a", 40, ready=10))
    worker.server.finish(1, FIRST)
    with decode_process(worker, 1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "allocated\n"
        asyncio.run(until(lambda: worker.server.pending() == 0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        worker.compute("a", 10, 40)
        asyncio.run(until(lambda: worker.how("a") == ["expired"], 5))
    assert worker.cancelled == []


def test_one_that_stands_still_is_noticed_though_its_connections_live(
    transport: str, prefill: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavepp_worker.handoff.prefill.pull_server.STOP_SECONDS", 0.5)
    worker = prefill(transport, timeout=1.0)
    worker.server.register(1, worker.offer("a", 40, ready=10))
    with decode_process(worker, 1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "allocated\n"
        asyncio.run(asyncio.sleep(2.0))
        assert worker.how("a") == [], "it lives, and asks"
        process.send_signal(signal.SIGSTOP)
        asyncio.run(until(lambda: worker.how("a") == ["expired"], 5))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
