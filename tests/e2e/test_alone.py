"""A worker without the launcher, started by the flags that Dynamo's other workers have."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from wavepp_worker.serve.broker import Broker
from wavepp_worker.serve.environment import BROKER_VARIABLE, LOOPBACK, STORE_VARIABLE

pytestmark = pytest.mark.e2e

FOREIGN = {
    "prefill": "--pipeline-parallel-size 2 --tensor-parallel-size 1 --kv-block-size 8 --max-num-tokens 64",
    "decode": "--block_size 8 --max-num-seqs 4 --max-model-len 1024",
    "agg": "-pp 1 -tp 1 --max-batch-size 4 --max-seq-len 1024",
}
ENGINES = {
    "prefill": [("prefill", 2)],
    "decode": [("decode", 1)],
    "agg": [("prefill", 1), ("decode", 1)],
}


def free_port() -> int:
    """One below those that the system gives out, as Dynamo takes none above 32767 here."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


def asked(url: str, worker: subprocess.Popen[bytes], log: Path) -> dict[str, object]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert worker.poll() is None, log.read_text()
        try:
            answer = httpx.post(f"{url}/engine/control/describe", json={}, timeout=10, trust_env=False)
            # While the ranks start, an error says so.
            if answer.status_code == 200 and answer.json()["status"] == "ok":
                return answer.json()
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no answer; the log:\n{log.read_text()}")


@pytest.mark.parametrize(
    "mode", ["agg", *(pytest.param(mode, marks=pytest.mark.soak) for mode in ("prefill", "decode"))]
)
def test_each_role_starts_and_stops(mode: str, tiny_llama: Path, tmp_path: Path) -> None:
    log, port = tmp_path / "log", free_port()
    broker = Broker(f"ipc://{tmp_path}/in", f"ipc://{tmp_path}/out")
    environment = {
        **os.environ,
        **LOOPBACK,
        STORE_VARIABLE: str(tmp_path / "store"),
        BROKER_VARIABLE: broker.url,
        "DYN_SYSTEM_PORT": str(port),
        "DYN_WAVEPP_KV_TOKENS": "8192",
        "DYN_WAVEPP_SERVED_MODEL_NAME": "tiny",
    }
    flags = (
        f"--disaggregation-mode {mode} --model-path {tiny_llama} --discovery-backend file --event-plane zmq"
    )
    command = [sys.executable, "-m", "wavepp_worker", *flags.split(), *FOREIGN[mode].split()]
    try:
        with log.open("wb") as output:
            worker = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            said = asked(f"http://127.0.0.1:{port}", worker, log)
            engines = [(each["role"], len(each["ranks"])) for each in said["engines"]]  # type: ignore[attr-defined]
            assert engines == ENGINES[mode]
            assert {rank["kv_tokens"] for each in said["engines"] for rank in each["ranks"]} == {8192}  # type: ignore[attr-defined]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, log.read_text()
        finally:
            worker.kill()
            worker.wait()
    finally:
        broker.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--disaggregation-mode encode",
            "error: --disaggregation-mode: should be agg, prefill or decode; this worker",
        ),
        (
            "--disaggregation-mode prefil",
            "error: --disaggregation-mode: should be 'agg', 'prefill' or 'decode', not 'p",
        ),
        (
            "--disaggregation-mode decode --pp 2 --model /m",
            "error: --pp: is a setting of workers that prefill; ",
        ),
    ],
)
def test_a_start_that_cannot_be_ends_with_a_sentence(words: str, sentence: str) -> None:
    command = [sys.executable, "-m", "wavepp_worker", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)
    assert done.stderr.count("\n") == 1
