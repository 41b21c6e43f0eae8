"""A prefill worker that takes jobs, without Dynamo around it: ``python -m tests.support.queue_worker`` as a process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from wavepp_worker.dynamo.prefill_handler import PrefillHandler
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName
from wavepp_worker.runtime.protocol.engine_config import EngineConfig

from tests.support.warm_processes import WarmProgram

READY = "ready"
START_SECONDS = 120.0
AUDIT_SECONDS = 60.0


class QueueWorker:
    """One such process and its ranks."""

    def __init__(self, model: Path, server: str, name: QueueName, replica: str, *, pp: int = 2) -> None:
        command = [
            sys.executable,
            "-m",
            __name__,
            str(model),
            server,
            name.namespace,
            name.model,
            replica,
            str(pp),
        ]
        self.replica = replica
        self.process = WarmProgram(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def wait_ready(self) -> None:
        """Until it takes jobs; as often as one likes."""
        assert self._ready.wait(START_SECONDS), f"{self.replica} does not start"

    def kill(self) -> None:
        """It and its ranks, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def audit(self) -> str:
        """What its audit says: empty if nothing leaked."""
        assert self.process.stdin is not None
        self.process.stdin.write("audit\n")
        self.process.stdin.flush()
        return self._said.get(timeout=AUDIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(AUDIT_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == READY:
                self._ready.set()
            else:
                self._said.put(line.strip())


def _die(reason: str) -> None:
    os.write(2, f"{reason}\n".encode())
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    model, server, namespace, served, replica, pp = sys.argv[1:]
    config = EngineConfig(
        model=Path(model),
        pp=int(pp),
        dtype="float32",
        kv_tokens=2048,
        max_model_len=1024,
        max_num_batched_tokens=64,
        handoff="socket",
    )
    handler = PrefillHandler(config, bootstrap_port=0, on_index=lambda delta: None, on_death=_die)
    handler.start()
    # As patient as a worker has to be on a machine that does much else.
    settings = IntakeConfig(intake="nats", nats_server=server, intake_silence=3, intake_attempts=8)
    intake = Intake(handler, settings, QueueName(namespace, served))
    intake.start(replica)
    print(READY, flush=True)
    for line in sys.stdin:
        if line.strip() == "audit":
            try:
                handler.engine.audit()
                print(flush=True)
            except Exception as error:
                print(repr(error), flush=True)
    intake.close()
    handler.close()


if __name__ == "__main__":
    main()
