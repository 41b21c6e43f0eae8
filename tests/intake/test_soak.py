"""Five hundred jobs while workers and the NATS server are killed at random: each has one answer, or one clear error."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import pytest
from wavepp_worker.errors import InvalidRequest, QueueError, RequestAborted, RequestFailed, RequestTimeout
from wavepp_worker.intake.messages import JobResult
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.intake.test_intake import empty
from tests.support.nats_servers import NatsServer
from tests.support.queue_worker import QueueWorker
from tests.support.reference import Reference

JOBS = 500
SECONDS = float(os.environ.get("SOAK_SECONDS", "90"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.randrange(2**31)


class Killer(threading.Thread):
    """Kills a worker or the server every few seconds, and starts it again.

    Now and then a worker that only starts; but not more often than they start, or nobody would be left to answer.
    """

    def __init__(
        self, rng: random.Random, server: NatsServer, workers: list[QueueWorker], model: Path, name: QueueName
    ) -> None:
        super().__init__(daemon=True)
        self.kills: Counter[str] = Counter()
        self._rng, self._server, self._workers = rng, server, workers
        self._model, self._name = model, name
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._rng.uniform(1.0, 4.0)):
            if self._rng.random() < 0.4:
                self.kills["server"] += 1
                self._server.kill()
                time.sleep(self._rng.uniform(0.0, 2.0))
                self._server.start()
                continue
            place = self._rng.randrange(len(self._workers))
            if self._workers[place].is_ready or self._rng.random() < 0.1:
                self.kills["worker"] += 1
                self._workers[place].kill()
                self._workers[place].close()
                replica = f"{self._workers[place].replica}x"
                self._workers[place] = QueueWorker(self._model, self._server.url, self._name, replica)

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        for worker in self._workers:
            worker.wait_ready()


def cancel(queue: PrefillQueue, job: str) -> None:
    # While the server is away nobody may hear of it.
    with contextlib.suppress(QueueError):
        queue.cancel(job)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_every_job_ends_once_whatever_is_killed(
    server: NatsServer, name: QueueName, queue: PrefillQueue, tiny_llama: Path, reference: Reference
) -> None:
    print(f"SOAK_SEED={SEED}")
    rng = random.Random(SEED)
    workers = [QueueWorker(tiny_llama, server.url, name, f"r{number}") for number in range(3)]
    killer = Killer(rng, server, workers, tiny_llama, name)
    try:
        for worker in workers:
            worker.wait_ready()
        killer.start()
        asked: dict[str, tuple[list[int], Future[JobResult]]] = {}
        again: dict[str, Future[JobResult]] = {}
        for number in range(JOBS):
            job, prompt = f"job {number}", [number % 300, *rng.choices(range(300), k=rng.randrange(1, 400))]
            options: dict[str, object] = {}
            if rng.random() < 0.3:
                options["replica"] = f"r{rng.randrange(5)}"
            if rng.random() < 0.05:
                options["deadline_seconds"] = rng.uniform(0.1, 3.0)
            if rng.random() < 0.05:
                prompt[-1] = 900
            asked[job] = prompt, queue.submit(prompt, id=job, **options)
            if rng.random() < 0.1:
                again[job] = queue.submit(prompt, id=job)
            if rng.random() < 0.05:
                threading.Thread(target=cancel, args=(queue, job), daemon=True).start()
            time.sleep(SECONDS / JOBS)
        killer.stop()
        unclear = 0
        ends: Counter[str] = Counter()
        attempts: Counter[int] = Counter()
        for job, (prompt, future) in asked.items():
            try:
                answer = future.result(240)
            except (InvalidRequest, RequestAborted, RequestFailed, RequestTimeout) as error:
                ends[type(error).__name__] += 1
                unclear += isinstance(error, InvalidRequest) and "outside the vocabulary" not in str(error)
                if job in again:
                    with pytest.raises(type(error)):
                        again[job].result(60)
                continue
            ends["answered"] += 1
            attempts[answer.attempt] += 1
            assert answer.id == job
            if job in again:
                assert again[job].result(60) == answer
            if rng.random() < 0.2:
                assert answer.first_token == int(reference.next_logprobs(prompt).argmax())
        print(f"kills {dict(killer.kills)}, ends {dict(ends)}, attempts {dict(attempts)}")
        assert (sum(ends.values()), unclear) == (JOBS, 0)
        assert ends["answered"] > JOBS * 0.75
        empty(server, name)
        assert [worker.audit() for worker in workers] == [""] * 3
        # What they said at first, they say for good.
        for job, (prompt, future) in list(asked.items())[::50]:
            if future.exception() is None:
                assert queue.prefill(prompt, id=job) == future.result()
    finally:
        for worker in workers:
            worker.close()
