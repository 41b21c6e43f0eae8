"""Real engines that take jobs, killed while they run some."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future
from pathlib import Path

from wavepp_worker.intake.messages import JobResult
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.intake.test_intake import empty, wait_for
from tests.support.nats_servers import NatsServer
from tests.support.queue_worker import QueueWorker
from tests.support.rank_pids import ranks_of
from tests.support.reference import Reference


def test_a_killed_worker_costs_time_and_no_answer(
    server: NatsServer, name: QueueName, queue: PrefillQueue, tiny_llama: Path, reference: Reference
) -> None:
    workers = [QueueWorker(tiny_llama, server.url, name, f"r{number}", pp=1) for number in range(2)]
    try:
        for worker in workers:
            worker.wait_ready()
        # What it takes from now on it does not end.
        os.kill(ranks_of(workers[0].process.pid)[0], signal.SIGSTOP)
        prompts = [[number, *range(100)] for number in range(60)]
        futures: list[Future[JobResult]] = [queue.submit(prompt, id=f"{prompt[0]}") for prompt in prompts]
        wait_for(lambda: sum(future.done() for future in futures) >= 30, 30)
        workers[0].kill()
        answers = [future.result(60) for future in futures]
        assert {answer.attempt for answer in answers} >= {1, 2}
        assert all(answer.replica == "r1" for answer in answers if answer.attempt > 1)
        for prompt, answer in list(zip(prompts, answers, strict=True))[::12]:
            assert answer.first_token == int(reference.next_logprobs(prompt).argmax())
        empty(server, name)
        assert workers[1].audit() == ""
    finally:
        for worker in workers:
            worker.close()
