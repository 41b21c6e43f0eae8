"""A queue on a server that takes little: what is larger is refused, cut or answered, and ends no connection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wavepp_worker import token_ids
from wavepp_worker.errors import JobTooLarge, QueueError
from wavepp_worker.intake import sentences
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.messages import Job, JobFailure, JobResult, JobTimings, Running
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.intake.test_intake import dead, empty, publish, state_of
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer

SMALL_PAYLOAD = 8192


@pytest.fixture
def small(tmp_path: Path, name: QueueName) -> Iterator[tuple[NatsServer, PrefillQueue, Intake]]:
    """A queue on a server that takes little, and a replica at which all fail that it prefills but the prompt [7]."""
    server = NatsServer(tmp_path, f"max_payload: {SMALL_PAYLOAD}")
    server.start()
    prefills = FakePrefills()
    prefills.fails = lambda request: list(token_ids.unpack(request.tokens)) != [7]
    config = IntakeConfig(intake="nats", nats_server=server.url, intake_attempts=2, intake_silence=1)
    intake = Intake(prefills, config, name)
    try:
        intake.start("r1")
        with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as queue:
            yield server, queue, intake
    finally:
        intake.close()
        server.close()


def job_of(size: int, **options: Any) -> Job:
    """One whose JSON has so many bytes."""
    job = Job(**{"id": "large", "token_ids": (1, 2), "salt": "x", **options})
    return msgspec.structs.replace(job, salt="x" * (size + 1 - len(job.encode())))


@pytest.mark.parametrize("size", [SMALL_PAYLOAD - 1, SMALL_PAYLOAD - 50, SMALL_PAYLOAD - 1000])
def test_a_job_near_the_servers_limit_that_fails_is_kept_as_far_as_it_fits(
    small: tuple[NatsServer, PrefillQueue, Intake], name: QueueName, size: int
) -> None:
    """The server ends the connection of whoever publishes more than it takes, headers counted."""
    server, queue, intake = small
    job = job_of(size)
    publish(server, name.job("large"), job.encode())
    empty(server, name)
    [(data, headers)] = dead(server, name)
    answer = state_of(server, name, "large")
    if size == SMALL_PAYLOAD - 1000:
        assert (data, "Wavepp-Cut" in headers, "max_payload" in answer["error"]) == (
            job.encode(),
            False,
            False,
        )
    else:
        cut = size - len(data)
        assert job.encode().startswith(data)
        assert 0 < cut < 300
        assert headers["Wavepp-Cut"] == f"of {size} bytes"
        assert (
            f"among the dead jobs, without its last {cut} bytes (max_payload); the last time"
            in answer["error"]
        )
    assert headers["Wavepp-Reason"] == "it fails"
    assert queue.prefill([7]).first_token == 8
    assert intake._connection.stats["reconnects"] == 0


@pytest.mark.parametrize("length", [SMALL_PAYLOAD - 40, SMALL_PAYLOAD - 300])
def test_what_is_no_job_is_answered_however_long_what_is_wrong_with_it(
    small: tuple[NatsServer, PrefillQueue, Intake], name: QueueName, length: int
) -> None:
    """The sentence quotes the name of an unknown key, and an answer larger than the job would not be taken."""
    server, queue, intake = small
    for number in range(12):  # more than a replica holds
        publish(server, name.job(f"{number}"), b'{"id": "%d", "%s": 1}' % (number, b"k" * length))
    empty(server, name)
    answer = state_of(server, name, "11")
    assert answer["error"].startswith("this is no job: Object contains unknown field `kkk")
    assert answer["error"].endswith("kkk`; docs/queue.md says what one is")
    assert queue.prefill([7]).first_token == 8
    assert intake._connection.stats["reconnects"] == 0


def test_an_answer_larger_than_the_server_takes_is_a_failure_that_says_so(
    small: tuple[NatsServer, PrefillQueue, Intake], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, queue, _ = small
    ledger = queue._client._ledger
    answer = JobResult(
        id="x" * SMALL_PAYLOAD,
        digest="d",
        replica="r1",
        attempt=3,
        first_token=1,
        logprob=0.0,
        top_logprobs=(),
        prompt_tokens=1,
        reused_tokens=0,
        timings=JobTimings(queued=0.0, admission=0.0, execution=0.0, total=0.0),
    )
    revision = queue._call(ledger.write("a", answer, 0, 5.0))
    found = queue._call(ledger.find("a"))
    assert found.revision == revision
    assert (found.state.code, found.state.digest, found.state.attempts) == ("failed", "d", 3)
    assert re.fullmatch(r"the answer has \d+ bytes, .*; raise its max_payload", found.state.error)
    failure = JobFailure(code="invalid", error="x" * SMALL_PAYLOAD, digest="d")
    queue._call(ledger.write("b", failure, 0, 5.0))
    assert queue._call(ledger.find("b")).state.code == "invalid", "its sentence is cut"
    monkeypatch.setattr(sentences, "MOST_CHARACTERS", 10**6)
    queue._call(ledger.write("c", failure, 0, 5.0))
    assert queue._call(ledger.find("c")).state.code == "invalid"
    with pytest.raises(QueueError, match="more than the NATS server takes"):
        queue._call(ledger.write("d", Running(job=1, replica="r" * SMALL_PAYLOAD, attempt=1), 0, 5.0))


def test_a_job_larger_than_the_server_takes_is_refused_and_costs_others_nothing(
    small: tuple[NatsServer, PrefillQueue, Intake],
) -> None:
    """Of any length: what its headers add counts as well."""
    _, queue, _ = small
    refused: list[str] = []
    for size in range(SMALL_PAYLOAD - 200, SMALL_PAYLOAD + 1, 20):
        job = job_of(size, id=f"{size}", token_ids=(7,))
        try:
            assert queue.submit(job).result(10).first_token == 8
        except JobTooLarge as error:
            refused.append(str(error))
    assert 0 < len(refused) < 11
    assert f"has {size} bytes, the NATS server takes at most {SMALL_PAYLOAD} with headers" in refused[-1]
    assert queue._client._connection.stats["reconnects"] == 0
