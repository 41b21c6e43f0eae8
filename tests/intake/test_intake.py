"""A replica and the queue that it takes jobs from, over a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wavepp_worker.errors import (
    ConfigError,
    InvalidRequest,
    QueueError,
    RequestAborted,
    RequestFailed,
    RequestTimeout,
)
from wavepp_worker.intake import answer_wait, job_runner, opening
from wavepp_worker.intake import intake as intake_module
from wavepp_worker.intake import streams as streams_module
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.messages import Job, JobFailure, Running
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.model.files.text_tokenizer import TextTokenizer
from wavepp_worker.runtime.client.request_maker import RequestMaker
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

from tests.intake.conftest import MakeIntake
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer


def wait_for(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)
    return found


def on_server(server: NatsServer, work: Callable[[Any], Any]) -> Any:
    """Do something with a plain connection, as a program of another language would."""

    async def connected() -> Any:
        import nats

        connection = await nats.connect(server.url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(connected())


def left(server: NatsServer, name: QueueName) -> int:
    async def count(connection: Any) -> int:
        info = await connection.jetstream().stream_info(name.jobs_stream)
        return int(info.state.messages)

    return int(on_server(server, count))


def dead(server: NatsServer, name: QueueName) -> list[tuple[bytes, dict[str, str]]]:
    async def read(connection: Any) -> list[tuple[bytes, dict[str, str]]]:
        stream = connection.jetstream()
        state = (await stream.stream_info(name.dead_stream)).state
        if not state.messages:
            return []
        found = [
            await stream.get_msg(name.dead_stream, seq=number)
            for number in range(state.first_seq, state.last_seq + 1)
        ]
        return [(each.data, dict(each.headers)) for each in found]

    return list(on_server(server, read))


def publish(server: NatsServer, subject: str, data: bytes, **options: Any) -> None:
    async def send(connection: Any) -> None:
        await connection.jetstream().publish(subject, data, **options)

    on_server(server, send)


def publish_plainly(server: NatsServer, subject: str, data: bytes) -> None:
    """Without a client that checks subjects."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.recv(65536)
        plain.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        plain.sendall(b"PUB %s %d\r\n%s\r\nPING\r\n" % (subject.encode(), len(data), data))
        assert b"PONG" in plain.recv(65536)


def state_of(server: NatsServer, name: QueueName, job: str) -> dict[str, Any]:
    async def read(connection: Any) -> dict[str, Any]:
        import nats.js.errors

        try:
            found = await connection.jetstream().get_last_msg(name.states_stream, name.state(job))
        except nats.js.errors.NotFoundError:
            return {}
        return dict(json.loads(found.data))

    return dict(on_server(server, read))


def forget(server: NatsServer, name: QueueName) -> None:
    """As if its store were new."""

    async def delete(connection: Any) -> None:
        for stream in (name.jobs_stream, name.states_stream, name.dead_stream):
            await connection.jetstream().delete_stream(stream)

    on_server(server, delete)


def empty(server: NatsServer, name: QueueName) -> None:
    wait_for(lambda: left(server, name) == 0)


def stand_still(intake: Intake, seconds: float) -> threading.Event:
    """Have nothing be heard of a replica, as of a stopped process, until the event is set or this has passed."""
    stopped = threading.Event()
    intake._loop.call_soon_threadsafe(stopped.wait, seconds)
    return stopped


class SlowTexts:
    """Stands in for the tokenizer: every text is two tokens, which some wait for.

    Attributes:
        begun: the texts that it was given.
        waits: whether one is waited for.
        made: once set, none waits any longer.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.waits: Callable[[str], bool] = lambda text: True
        self.made = threading.Event()

    def ids(self, text: str) -> list[int]:
        self.begun.append(text)
        if self.waits(text):
            self.made.wait(60)
        return [1, 2]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowTexts]:
    slow = SlowTexts()
    monkeypatch.setattr(TextTokenizer, "ids", lambda _, text: slow.ids(text))
    yield slow
    slow.made.set()


def test_jobs_are_answered_and_leave_the_queue(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    prefills = FakePrefills()
    make_intake("r1", prefills)
    futures = [queue.submit([1, number], id=f"job {number}", salt="s", priority=3) for number in range(50)]
    answers = [future.result(20) for future in futures]
    assert [answer.first_token for answer in answers] == list(range(1, 51))
    assert {(answer.replica, answer.attempt, answer.prompt_tokens) for answer in answers} == {("r1", 1, 2)}
    assert len(prefills.asked) == 50
    assert {(request.salt, request.priority, request.handoff) for request in prefills.asked} == {
        ("s", 3, False)
    }
    empty(server, name)
    assert queue.depth() == 0


def test_jobs_wait_for_a_replica_that_comes_later(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    future = queue.submit([1, 2])
    wait_for(lambda: queue.depth() == 1)
    make_intake("r1", FakePrefills())
    assert future.result(10).first_token == 3


def test_one_id_runs_once_however_often_and_where_it_is_sent(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """S38: also to two replicas, after its answer, and by another sender."""
    prefills = [FakePrefills(seconds=0.3), FakePrefills(seconds=0.3)]
    for number, each in enumerate(prefills):
        make_intake(f"r{number}", each)
    futures = [queue.submit([1, 2], id="same", replica=replica) for replica in (None, "r0", "r1", None)]
    assert len({future.result(10).replica for future in futures}) == 1
    with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as other:
        began = time.monotonic()
        assert other.prefill([1, 2], id="same").first_token == 3
        assert time.monotonic() - began < 1
    # Messages that come when the first is over.
    publish(server, name.job("same"), Job(id="same", token_ids=(1, 2)).encode())
    publish(server, name.job("same", "r1"), Job(id="same", token_ids=(1, 2)).encode())
    empty(server, name)
    assert sum(len(each.asked) for each in prefills) == 1


def test_two_messages_of_one_id_that_meet_run_once(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """The stream does not refuse them: their subjects differ."""
    queue.depth()
    for replica in (None, "r0", "r1"):
        publish(server, name.job("twice", replica), Job(id="twice", token_ids=(1, 2)).encode())
    prefills = [FakePrefills(seconds=0.5), FakePrefills(seconds=0.5)]
    for number, each in enumerate(prefills):
        make_intake(f"r{number}", each)
    assert queue.prefill([1, 2], id="twice").first_token == 3
    empty(server, name)
    assert sum(len(each.asked) for each in prefills) == 1


def test_an_id_that_asks_for_something_else_is_refused(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    make_intake("r1", FakePrefills())
    queue.prefill([1, 2], id="a")
    with pytest.raises(InvalidRequest, match="job id a is that of another job"):
        queue.prefill([1, 3], id="a")


@pytest.mark.parametrize("replica", [None, "r1"])
def test_a_deadline_ends_nobody_elses_job_of_the_same_id(
    queue: PrefillQueue, make_intake: MakeIntake, replica: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both are queued, as they address different replicas."""
    monkeypatch.setattr(answer_wait, "DEADLINE_GRACE_SECONDS", 0.1)
    prefills = FakePrefills(seconds=60)
    make_intake("r1", prefills)
    first = queue.submit([1, 2], id="same")
    wait_for(lambda: prefills.asked)
    with pytest.raises(RequestTimeout, match="another sender's job of its id goes on"):
        queue.prefill([7, 8], id="same", deadline_seconds=0.2, replica=replica)
    prefills.release.set()
    assert first.result(10).first_token == 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\x00 garbage", "this is no job"),
        (b"[" * 100_000, "this is no job"),
        (b"{}", "this is no job"),
        (b'{"id": "x", "token_ids": [1], "temperature": 1}', "temperature"),
        (b'{"id": "x", "token_ids": [1], "sampling": {"temprature": 1}}', "temprature"),
        (b'{"id": "x", "token_ids": [1, -1]}', "token id -1"),
        (b'{"id": "x", "token_ids": [99999999999999999999999999]}', "token ids must be"),
        (b'{"id": "x"}', "neither"),
        (b'{"id": "x", "token_ids": [1], "text": "a"}', "both"),
        (b'{"id": "x", "text": "a"}', "token ids"),
        (b'{"id": "somebody else", "token_ids": [1]}', "its subject has to end with"),
        (b'{"id": "x", "token_ids": [1, 300]}', "outside the vocabulary"),
        (b'{"id": "x", "token_ids": [1], "replica": "a.b.>"}', "this is no job"),
        (
            b'{"id": "x", "token_ids": [1], "priority": 18446744073709551616}',
            "priority of job 'x' has a number",
        ),
        (
            b'{"id": "x", "token_ids": [1], "banned": [18446744073709551616]}',
            "banned of job 'x' has a number",
        ),
    ],
)
def test_what_is_no_job_is_answered_with_a_sentence(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    data: bytes,
    says: str,
) -> None:
    prefills = FakePrefills()
    make_intake("r1", prefills)
    publish(server, name.job("x"), data)
    empty(server, name)

    async def state(connection: Any) -> Any:
        found = await connection.jetstream().get_last_msg(name.states_stream, name.state("x"))
        return json.loads(found.data)

    answer = on_server(server, state)
    assert (answer["state"], answer["code"]) == ("failed", "invalid")
    assert says in answer["error"]
    assert prefills.asked == []
    assert dead(server, name) == []


def test_a_giant_job_is_refused_before_it_is_sent_and_where_it_comes(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    with pytest.raises(InvalidRequest, match="shorten its prompt"):
        queue.prefill([100000] * 1_500_000)
    make_intake("r1", FakePrefills())
    publish(server, name.job("giant"), b'{"id": "giant", "text": "' + b"a" * 9_000_000 + b'"}')
    empty(server, name)
    with pytest.raises(InvalidRequest, match="a queue takes at most"):
        queue.prefill([1], id="giant")


def test_the_subject_that_answers_go_to_is_not_the_senders_to_choose(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """A reply subject in a message, and one that looks like an order to the server, stand for nothing."""
    make_intake("r1", FakePrefills())

    async def forge(connection: Any) -> None:
        data = Job(id="forged", token_ids=(1, 2)).encode()
        await connection.publish(
            name.job("forged"),
            data,
            reply=f"$JS.API.STREAM.DELETE.{name.jobs_stream}",
            headers={"Reply-To": f"$JS.API.STREAM.PURGE.{name.states_stream}"},
        )

    on_server(server, forge)
    assert queue.prefill([1, 2], id="forged").first_token == 3
    assert queue.prefill([1, 3]).first_token == 4


@pytest.mark.parametrize(
    "job_id", ["a.b.*.>", "ä \n\t\0", "x" * 512, "~" + "0" * 40, "$JS.API.>", "any", " "]
)
def test_an_id_may_be_any_text(queue: PrefillQueue, make_intake: MakeIntake, job_id: str) -> None:
    make_intake("r1", FakePrefills())
    assert queue.prefill([1, 2], id=job_id).id == job_id


@pytest.mark.parametrize("status", ["404", "409"])
def test_headers_that_the_server_itself_might_send_are_no_words_of_the_server(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake, status: str
) -> None:
    """A job that has them is run, and so are those that come with it."""
    job = Job(id="odd", token_ids=(1, 2))
    publish(server, name.job(job.token), job.encode(), headers={"Status": status})
    others = [queue.submit([n]) for n in range(5)]
    make_intake("r1", FakePrefills(), intake_silence=20)
    assert queue.submit(job).result(10).first_token == 3
    assert [other.result(10).first_token for other in others] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("block", [b"NATS/1.0", b"HTTP/1.1 200 OK\r\n\r\n", b"NATS/1.0 \xff\xff\xff\r\n\r\n"])
def test_headers_that_are_none_stop_no_replica(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake, block: bytes
) -> None:
    make_intake("r1", FakePrefills())
    job = Job(id="odd", token_ids=(1, 2))
    body = job.encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.recv(65536)
        plain.sendall(b'CONNECT {"headers":true,"verbose":false}\r\n')
        subject = name.job(job.token).encode()
        plain.sendall(b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(block), len(block + body), block, body))
        plain.sendall(b"PING\r\n")
        assert b"PONG" in plain.recv(65536)
    assert queue.submit(job).result(10).first_token == 3
    assert queue.prefill([4]).first_token == 5


@pytest.mark.parametrize("headers", [{}, {"Status": "404"}, {"Status": "503"}])
def test_a_state_that_somebody_forged_does_not_stop_a_job(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    headers: dict[str, str],
) -> None:
    make_intake("r1", FakePrefills())
    publish(server, name.state("x"), b"\x00 no state", headers=headers)
    assert queue.prefill([1, 2], id="x").first_token == 3


@pytest.mark.parametrize("job", [-1, 2**63, 2**64, 10**30, 2**63 - 1])
@pytest.mark.parametrize(
    "state",
    ['{"state": "running", "replica": "r0", "attempt": 1', '{"state": "waiting", "error": "", "attempts": 1'],
)
def test_a_number_that_no_server_counts_to_keeps_no_job(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake, state: str, job: int
) -> None:
    make_intake("r1", FakePrefills())
    publish(server, name.state("x"), f'{state}, "job": {job}}}'.encode())
    assert queue.submit([1, 2], id="x").result(10).first_token == 3
    assert queue._call(queue._client._streams.is_message_there(job)) is False


@pytest.mark.parametrize("wildcard", ["*", ">"])
@pytest.mark.parametrize("replica", [None, "r1", "never-was"])
def test_a_job_at_a_subject_that_stands_for_others_leaves_the_queue(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
    replica: str | None,
    wildcard: str,
) -> None:
    """And others do not with it, nor are they answered by what is wrong with it."""
    monkeypatch.setattr(intake_module, "TAKE_SECONDS", 0.1)
    queue.depth()
    subject = name.job(wildcard, replica)
    # A job that is begun, whose state is found where one looks for that of all.
    publish(server, name.state("y"), msgspec.json.encode(Running(job=99, replica="gone", attempt=1)))
    publish_plainly(server, subject, Job(id="x", token_ids=(1, 2)).encode())
    futures = [queue.submit([number], id=f"{number}", replica=replica) for number in range(3)]
    wait_for(lambda: left(server, name) == 4)
    prefills = FakePrefills()
    make_intake("r1", prefills)
    assert [future.result(10).first_token for future in futures] == [1, 2, 3]
    empty(server, name)
    assert queue.depth() == 0
    assert len(prefills.asked) == 3


def test_a_job_that_fails_is_tried_again_and_at_last_kept_among_the_dead(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    prefills = FakePrefills()
    prefills.failures = 1
    make_intake("r1", prefills, intake_attempts=2)
    assert queue.prefill([1, 2], id="second time").attempt == 2
    prefills.failures = 1000
    with pytest.raises(RequestFailed, match=r"given up after 2 attempts.*attempt 4 failed"):
        queue.prefill([5, 6], id="never")
    empty(server, name)
    # The id stays what it was, unless its sender says otherwise.
    prefills.failures = 0
    with pytest.raises(RequestFailed, match=r"given up after 2 attempts"):
        queue.prefill([5, 6], id="never")
    assert queue.prefill([5, 6], id="never", again=True).attempt == 1
    assert queue.prefill([5, 6], id="never", again=True).attempt == 1
    assert len(prefills.asked) == 5
    [(data, headers)] = dead(server, name)
    assert json.loads(data) == {"id": "never", "token_ids": [5, 6]}
    assert headers["Wavepp-Reason"] == "attempt 4 failed"
    assert headers["Wavepp-Attempts"] == "2"


def test_pauses_double_and_have_an_end() -> None:
    assert [job_runner.pause_seconds(attempt) for attempt in (1, 2, 3, 10, 10**6)] == [0.5, 1, 2, 30, 30]


@pytest.mark.parametrize(("attempts", "failed"), [(5, 2), (2, 1)])
def test_jobs_that_may_have_killed_replicas_run_one_at_a_time(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
    attempts: int,
    failed: int,
) -> None:
    """One that kills its replica would else take all beside it along, time after time, until all are given up."""
    monkeypatch.setattr(job_runner, "SUSPECT_PAUSE_SECONDS", 0.1)
    queue.depth()
    futures = []
    for number in range(1, 5):
        gone = Running(job=number, replica="gone", attempt=failed)
        publish(server, name.state(f"{number}"), msgspec.json.encode(gone))
        futures.append(queue.submit([number], id=f"{number}"))
        wait_for(lambda number=number: left(server, name) == number)
    prefills = FakePrefills(seconds=60)
    make_intake("r1", prefills, intake_attempts=attempts)
    wait_for(lambda: len(prefills.asked) == 1)
    others = [queue.submit([number], id=f"other {number}") for number in range(3)]
    # Those that come for the first time are nobody's suspects.
    wait_for(lambda: prefills.running == 4)
    prefills.seconds = 0.1
    prefills.release.set()
    answers = [future.result(20) for future in futures]
    assert [answer.attempt for answer in answers] == [failed + 1] * 4
    assert all(other.result(10).attempt == 1 for other in others)


def test_more_replicas_may_be_addressed_than_a_stream_has_consumers(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each life of a worker is another replica: a worker that dies again and again leaves many."""
    monkeypatch.setattr(intake_module, "TAKE_SECONDS", 0.1)
    monkeypatch.setattr(intake_module, "SWEEP_SECONDS", 0.1)

    async def narrow(connection: Any) -> None:
        stream = connection.jetstream()
        config = (await stream.stream_info(name.jobs_stream)).config
        await stream.delete_stream(name.jobs_stream)
        # A server's own limit is 1,000.
        await stream.add_stream(config, max_consumers=3)

    on_server(server, narrow)
    make_intake("r1", FakePrefills())
    futures = [queue.submit([1, number], replica=f"gone{number}") for number in range(5)]
    assert [future.result(20).first_token for future in futures] == [1, 2, 3, 4, 5]
    make_intake("r2", FakePrefills())
    assert queue.prefill([1, 2], replica="r2").replica == "r2"


def test_a_replica_that_is_silent_loses_its_jobs(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """Its late answer is nobody's."""
    slow, quick = FakePrefills(seconds=60), FakePrefills()
    silent = make_intake("r1", slow)
    future = queue.submit([1, 2])
    wait_for(lambda: slow.asked)
    stopped = stand_still(silent, 4)
    make_intake("r2", quick)
    answer = future.result(10)
    assert (answer.replica, answer.attempt) == ("r2", 2)
    stopped.set()
    slow.seconds = 0
    empty(server, name)


def test_who_is_done_first_answers_also_what_another_has_begun_meanwhile(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """As after a pause of the server: neither begins it again and again because of the other."""
    first, second = FakePrefills(seconds=60), FakePrefills(seconds=60)
    silent = make_intake("r1", first)
    future = queue.submit([1, 2], id="job")
    wait_for(lambda: first.asked)
    stopped = stand_still(silent, 10)
    make_intake("r2", second)
    wait_for(lambda: second.asked)
    first.release.set()
    stopped.set()
    answer = future.result(10)
    assert (answer.replica, answer.attempt) == ("r1", 1)
    empty(server, name)
    second.release.set()
    wait_for(lambda: second.running == 0)
    assert (len(first.asked), len(second.asked)) == (1, 1)
    assert queue.prefill([1, 2], id="job") == answer


def test_who_fails_leaves_the_job_to_who_has_begun_it_meanwhile(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    first, second = FakePrefills(seconds=60), FakePrefills(seconds=60)
    first.failures = 1000
    silent = make_intake("r1", first)
    future = queue.submit([1, 2])
    wait_for(lambda: first.asked)
    stopped = stand_still(silent, 10)
    make_intake("r2", second)
    wait_for(lambda: second.asked)
    first.release.set()
    stopped.set()
    wait_for(silent.idle)
    second.release.set()
    answer = future.result(10)
    assert (answer.replica, answer.attempt, len(first.asked)) == ("r2", 2, 1)
    empty(server, name)


def test_an_answer_that_the_server_refused_is_none(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """All hear it, as whoever listens hears what is published, stored or not."""
    future = queue.submit([1, 2], id="job")
    wait_for(lambda: queue.depth() == 1)
    late = JobFailure(code="failed", error="it was overtaken")
    headers = {"Nats-Expected-Last-Subject-Sequence": "17"}
    with pytest.raises(Exception, match="wrong last sequence"):
        publish(server, name.state("job"), msgspec.json.encode(late), headers=headers)
    make_intake("r1", FakePrefills())
    assert future.result(10).first_token == 3


def test_a_long_job_is_kept_alive(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    slow, other = FakePrefills(admits=0), FakePrefills()
    # It has no room, so it would not be the one that a job is delivered to again.
    make_intake("r1", slow, intake_ahead=1)
    future = queue.submit([1, 2])
    wait_for(lambda: slow.asked)
    time.sleep(0.1)
    make_intake("r2", other)
    time.sleep(2.2)
    slow.admits = 1
    answer = future.result(10)
    assert (answer.replica, answer.attempt, len(slow.asked), len(other.asked)) == ("r1", 1, 1, 0)
    empty(server, name)


def test_a_replica_that_is_told_to_stop_hands_its_jobs_back(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    slow, quick = FakePrefills(seconds=60), FakePrefills()
    stopping = make_intake("r1", slow, intake_silence=60)
    future = queue.submit([1, 2])
    wait_for(lambda: slow.asked)
    stopping.stop_taking()
    assert not stopping.idle()
    make_intake("r2", quick, intake_silence=60)
    began = time.monotonic()
    stopping.close()
    answer = future.result(10)
    assert time.monotonic() - began < 5
    # Being stopped is not the job's fault, and does not count against it.
    assert (answer.replica, answer.attempt) == ("r2", 1)
    assert stopping.idle()
    empty(server, name)


def test_a_replica_takes_no_more_than_it_admits_soon(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    busy, other = FakePrefills(seconds=0.2, admits=2), FakePrefills()
    make_intake("r1", busy, intake_ahead=3)
    futures = [queue.submit([1, number]) for number in range(20)]
    wait_for(lambda: busy.waiting >= 2)
    time.sleep(0.1)
    assert busy.waiting <= 4
    assert queue.depth() >= 20 - 2 - 4
    make_intake("r2", other)
    assert {future.result(10).replica for future in futures} == {"r1", "r2"}
    assert busy.most_waiting <= 4


def test_an_addressed_replica_gets_the_job_and_one_that_is_gone_loses_it(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake_module, "TAKE_SECONDS", 0.5)
    first, second = FakePrefills(), FakePrefills()
    make_intake("r1", first)
    make_intake("r2", second)
    for number in range(6):
        assert queue.prefill([1, number], replica="r2").replica == "r2"
    began = time.monotonic()
    assert queue.prefill([1, 2], replica="never-was").replica in ("r1", "r2")
    assert 0.4 < time.monotonic() - began < 5
    empty(server, name)


@pytest.mark.parametrize("address", ["x" * 65, "a/b", "ü"])
def test_an_address_that_is_no_replicas_name_is_answered_and_holds_up_nobody(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake, address: str
) -> None:
    job = Job(id="astray", token_ids=(1, 2))
    publish(server, name.job(job.token, address), job.encode())
    other = queue.submit([3], replica="never-was")
    make_intake("r1", FakePrefills())
    assert other.result(10).first_token == 4
    found = wait_for(lambda: queue._call(queue._client._ledger.find(job.token)))
    assert isinstance(found.state, JobFailure)
    assert (found.state.code, "a replica's name is 1 to 64 letters" in found.state.error) == ("invalid", True)
    wait_for(lambda: queue.depth() == 0)


def test_jobs_that_a_dead_replica_had_taken_for_itself_go_to_others(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    slow = FakePrefills(seconds=60)
    dying = make_intake("r1", slow)
    future = queue.submit([1, 2], replica="r1")
    wait_for(lambda: slow.asked)
    # As of a killed process, nothing is heard of it.
    stopped = stand_still(dying, 8)
    make_intake("r2", FakePrefills())
    answer = future.result(10)
    assert (answer.replica, answer.attempt) == ("r2", 2)
    stopped.set()
    empty(server, name)


def test_a_job_can_be_cancelled_while_it_runs_and_while_it_waits(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """S36, S37: what nobody wants any more does not run on."""
    waiting = queue.submit([1, 2], id="waiting")
    wait_for(lambda: queue.depth() == 1)
    queue.cancel("waiting")
    with pytest.raises(RequestAborted, match="cancelled by its sender"):
        waiting.result(10)
    slow = FakePrefills(seconds=60)
    make_intake("r1", slow)
    running = queue.submit([1, 2], id="running")
    wait_for(lambda: slow.asked)
    queue.cancel("running")
    with pytest.raises(RequestAborted):
        running.result(10)
    empty(server, name)
    assert len(slow.asked) == len(slow.aborted) == 1


def test_cancelling_an_answered_job_changes_nothing(queue: PrefillQueue, make_intake: MakeIntake) -> None:
    make_intake("r1", FakePrefills())
    assert queue.prefill([1, 2], id="a").first_token == 3
    queue.cancel("a")
    assert queue.prefill([1, 2], id="a").first_token == 3


def test_a_deadline_ends_a_job_wherever_it_is(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    # Nobody is there to take it.
    with pytest.raises(RequestTimeout, match=r"deadline_seconds=0.2 were over"):
        queue.prefill([1, 2], deadline_seconds=0.2)
    slow = FakePrefills(seconds=60)
    make_intake("r1", slow)
    with pytest.raises(RequestTimeout, match="were over"):
        queue.prefill([1, 2], deadline_seconds=0.5)
    empty(server, name)
    assert len(slow.asked) == len(slow.aborted) == 1


@pytest.mark.parametrize("job_id", ["report-17", "a job/of *mine*"])
def test_what_an_engine_says_of_a_job_names_it_as_its_sender_does(
    server: NatsServer,
    name: QueueName,
    queue: PrefillQueue,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
    job_id: str,
) -> None:
    prefills = FakePrefills()
    engine = RequestMaker(EngineConfig(model=Path("/nowhere")), max_model_len=100, vocab_size=300)

    async def prefill(request: PrefillRequest, *_: object) -> PrefillResult:
        engine.accepted(request)
        raise RequestTimeout(f"request {request.request_id}-0 did not finish within request_timeout=1 s")

    monkeypatch.setattr(prefills, "prefill", prefill)
    monkeypatch.setattr(prefills, "prefill_alone", prefill)
    make_intake("r1", prefills, intake_attempts=1)
    with pytest.raises(InvalidRequest) as refused:
        queue.prefill([1, 2], id=job_id, handoff=True)
    assert str(refused.value).startswith(f"job {job_id} asks for a hand-off, but this engine hands nothing")
    with pytest.raises(RequestFailed) as late:
        queue.prefill([1, 2], id=f"{job_id}-2")
    assert str(late.value).endswith(
        f"the last time: job {job_id}-2 did not finish within request_timeout=1 s"
    )
    [(_, headers)] = dead(server, name)
    assert headers["Wavepp-Reason"] == f"job {job_id}-2 did not finish within request_timeout=1 s"


def test_a_job_that_asks_for_a_hand_off_says_where_before_it_is_done(
    queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    make_intake("r1", FakePrefills(seconds=0.2))
    answer = queue.prefill([1, 2], handoff=True)
    assert answer.handoff is not None
    assert answer.handoff.port == 4242


def test_where_a_text_is_handed_over_is_said_once_it_is_tokens(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake, texts: SlowTexts
) -> None:
    """A claim does not wait for as long as a text may take."""
    slow = FakePrefills(seconds=60)
    make_intake("r1", slow)
    future = queue.submit("text", id="text", handoff=True)
    first = wait_for(lambda: state_of(server, name, "text"))
    texts.made.set()
    wait_for(lambda: slow.asked)
    second = state_of(server, name, "text")
    slow.release.set()
    assert (first["state"], first.get("handoff")) == ("running", None)
    assert second["handoff"]["port"] == 4242
    assert future.result(10).handoff.room == second["handoff"]["room"]


def test_jobs_outlive_the_server(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """What was queued, what ran and what was answered while it was away."""
    prefills = FakePrefills(seconds=0.5, admits=4)
    make_intake("r1", prefills)
    futures = [queue.submit([1, number], id=f"j{number}") for number in range(20)]
    wait_for(lambda: len(prefills.asked) > 5)
    server.kill()
    time.sleep(0.7)
    server.start()
    assert [future.result(30).first_token for future in futures] == list(range(1, 21))
    empty(server, name)
    assert len(prefills.asked) == 20


def test_a_server_that_comes_back_with_an_empty_store_gets_its_queue_anew(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    prefills = FakePrefills(seconds=60)
    make_intake("r1", prefills)
    lost = queue.submit([1, 2], id="lost")
    wait_for(lambda: prefills.asked)
    forget(server, name)
    # Its message has the number that the lost one had, which is still running.
    other = queue.submit([1, 3], id="other")
    wait_for(lambda: len(prefills.asked) == 2)
    prefills.release.set()
    assert other.result(10).first_token == 4
    with contextlib.suppress(QueueError):  # or its answer came
        assert lost.result(20).first_token == 3
    empty(server, name)


def test_a_sender_makes_a_queue_anew_that_is_gone(
    server: NatsServer, name: QueueName, queue: PrefillQueue
) -> None:
    forget(server, name)
    queue.submit([1, 2])

    def queued() -> bool:
        with contextlib.suppress(QueueError):
            return queue.depth() == 1
        return False

    wait_for(queued)


def test_a_consumer_that_never_acknowledges_holds_up_its_own_jobs_alone(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """Somebody else's program on the queue takes jobs and is never heard of again."""
    make_intake("r0", FakePrefills()).close()
    futures = [queue.submit([1, number]) for number in range(5)]

    async def grab(connection: Any) -> int:
        subscription = await connection.jetstream().pull_subscribe_bind(
            consumer=name.consumer(None), stream=name.jobs_stream
        )
        taken = 0
        while taken < 3:
            # A fetch may end with fewer than it asked for.
            taken += len(await subscription.fetch(3 - taken, timeout=5))
        return taken

    assert on_server(server, grab) == 3
    make_intake("r1", FakePrefills())
    assert queue.prefill([7, 8]).first_token == 9
    assert [future.result(10).attempt for future in futures] == [1] * 5
    empty(server, name)


def test_jobs_are_taken_once_a_server_is_there_that_was_not_when_the_worker_started(
    tmp_path: Path, name: QueueName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2)
    server = NatsServer(tmp_path)
    monkeypatch.setenv("NATS_SERVER", server.url)
    first, second = (Intake(FakePrefills(), IntakeConfig(intake="nats"), name) for _ in range(2))
    # Dynamo's runtime must not find it; who takes jobs knows it already.
    monkeypatch.delenv("NATS_SERVER")
    try:
        first.start("r1")
        second.start("r2")
        second.stop_taking()
        [said, _] = [record.getMessage() for record in caplog.records if "is not reached yet" in record.msg]
        assert server.url in said
        assert "until then this worker takes no jobs" in said
        server.start()
        with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as queue:
            answers = [queue.submit([1, n]) for n in range(8)]
            assert {answer.result(20).replica for answer in answers} == {"r1"}
    finally:
        first.close()
        second.close()
        server.close()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("end", [Intake.close, Intake.stop_taking])
def test_a_worker_that_is_told_to_stop_while_it_starts_waits_for_nobody(
    server: NatsServer,
    name: QueueName,
    make_intake: MakeIntake,
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    end: Callable[[Intake], None],
) -> None:
    """Neither for a server that is not there, nor for another worker that does not say which weights it has."""
    first = make_intake("r1", FakePrefills(model_id="a"))
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2 if there else 60.0)
    url = server.url if there else "nats://127.0.0.1:1"
    config = IntakeConfig(intake="nats", nats_server=url, intake_silence=60)
    intake = Intake(FakePrefills(model_id="b"), config, name)
    over = stand_still(first, 60)
    start = threading.Thread(target=intake.start, args=("r2",), daemon=True)
    start.start()
    time.sleep(1.5)
    assert start.is_alive()
    end(intake)
    start.join(5)
    assert not start.is_alive()
    intake.close()
    assert not intake._thread.is_alive()
    assert intake._loop.is_closed()
    assert (intake._connection is not None) == there
    assert not there or intake._connection.is_closed
    over.set()


@pytest.mark.parametrize("end", [Intake.close, Intake.stop_taking])
def test_a_worker_that_is_told_to_stop_before_it_starts_does_not(
    server: NatsServer, name: QueueName, end: Callable[[Intake], None]
) -> None:
    intake = Intake(FakePrefills(), IntakeConfig(intake="nats", nats_server=server.url), name)
    end(intake)
    intake.start("r1")
    assert not intake._thread.is_alive()
    intake.close()


def test_a_server_without_jetstream_is_refused_at_the_start_and_waited_for_later(
    tmp_path: Path, name: QueueName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2)
    monkeypatch.setattr(opening, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(streams_module, "JETSTREAM_SECONDS", 0.0)
    server = NatsServer(tmp_path, jetstream=False)
    config = IntakeConfig(intake="nats", nats_server=server.url)
    intakes = [Intake(FakePrefills(), config, name) for _ in range(2)]
    try:
        intakes[0].start("r1")
        server.start()
        wait_for(lambda: "the queue is not open yet" in caplog.text)
        assert "has no JetStream" in caplog.text
        monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 10.0)
        with pytest.raises(ConfigError, match="has no JetStream"):
            intakes[1].start("r2")
    finally:
        for intake in intakes:
            intake.close()
        server.close()


def test_a_job_cancelled_while_it_runs_and_sent_again_at_once_is_answered(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """The replica hears of the cancellation only when the job was sent again; the message is still the first one."""
    slow = FakePrefills(seconds=60)
    intake = make_intake("r1", slow, intake_silence=15)
    first = queue.submit([1, 2], id="job")
    wait_for(lambda: slow.asked)
    go_on = stand_still(intake, 3)
    queue.cancel("job")
    with pytest.raises(RequestAborted):
        first.result(10)
    second = queue.submit([1, 2], id="job", again=True)
    wait_for(lambda: state_of(server, name, "job").get("error") == "it is sent again")
    slow.seconds = 0
    go_on.set()
    assert second.result(10).first_token == 3
    empty(server, name)


def test_who_sends_a_job_again_after_its_deadline_is_not_told_of_the_first_senders(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    with pytest.raises(RequestTimeout):
        queue.submit([1, 2], id="job", deadline_seconds=0.2).result(10)
    second = queue.submit([1, 2], id="job", deadline_seconds=60, again=True)
    # The first one's message is still there.
    wait_for(lambda: state_of(server, name, "job").get("error") == "it is sent again")
    make_intake("r1", FakePrefills())
    assert second.result(10).first_token == 3
    empty(server, name)


def test_the_deadline_of_the_first_sender_is_none_of_the_second_attempt_either(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    with pytest.raises(RequestTimeout):
        queue.prefill([1, 2], id="job", deadline_seconds=0.2)
    # Its message is still there, as nobody took it.
    second = queue.submit([1, 2], id="job", deadline_seconds=60, again=True)
    failing = FakePrefills(seconds=60)
    failing.failures = 1
    wait_for(lambda: state_of(server, name, "job").get("error") == "it is sent again")
    make_intake("r1", failing)
    wait_for(lambda: failing.running)
    # Whoever begins it after a replica that is not heard of knows by this.
    assert state_of(server, name, "job")["forgiven"] == 1
    failing.release.set()
    assert second.result(10).attempt == 2


def test_a_job_that_is_sent_again_has_its_own_deadline(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    """Also where its sender is gone, and cannot see to it."""
    failing = FakePrefills()
    failing.failures = 1
    make_intake("r1", failing, intake_attempts=1)
    with pytest.raises(RequestFailed):
        queue.prefill([1, 2], id="job")
    empty(server, name)
    failing.seconds = 60
    with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as other:
        other.submit([1, 2], id="job", deadline_seconds=1, again=True)
        wait_for(lambda: failing.running)
    wait_for(lambda: failing.aborted)
    empty(server, name)


def test_a_text_that_kills_whoever_makes_tokens_of_it_is_given_up_and_costs_others_nothing(
    queue: PrefillQueue, make_intake: MakeIntake, texts: SlowTexts
) -> None:
    """Nothing is heard any more of a replica that begins; a text that waits behind it was not begun."""
    texts.waits = lambda text: text == "poison"

    def replica(name: str) -> Intake:
        return make_intake(name, FakePrefills(), intake_attempts=2)

    poison = queue.submit("poison", id="poison")
    stopped = []
    try:
        first = replica("r0")
        wait_for(lambda: texts.begun.count("poison") == 1)
        behind = queue.submit("behind", id="behind")
        wait_for(lambda: len(first._taken) == 2)
        stopped.append(stand_still(first, 30))
        second = replica("r1")
        wait_for(lambda: texts.begun.count("poison") == 2)
        stopped.append(stand_still(second, 30))
        replica("r2")
        with pytest.raises(RequestFailed, match=r"given up after 2 attempts.*r1 was not heard of"):
            poison.result(10)
        answer = behind.result(10)
        assert answer.replica != "r0"
        assert answer.attempt == 1
        assert texts.begun.count("poison") == 2
    finally:
        texts.made.set()
        for each in stopped:
            each.set()


@pytest.mark.parametrize(("ahead", "count"), [(64, 40), (4, 7)])
def test_jobs_of_token_ids_do_not_wait_for_texts(
    queue: PrefillQueue, make_intake: MakeIntake, texts: SlowTexts, ahead: int, count: int
) -> None:
    """Neither for a thread nor for room."""
    intake = make_intake("r1", FakePrefills(), intake_ahead=ahead)
    futures = [queue.submit("text", id=f"text {number}") for number in range(count)]
    wait_for(lambda: len(intake._taken) == count)
    assert queue.submit([1, 2], id="tokens").result(3).first_token == 3
    texts.made.set()
    assert all(each.result(20).first_token == 3 for each in futures)


def test_a_replica_that_stops_hands_back_the_text_that_it_makes_tokens_of(
    queue: PrefillQueue, make_intake: MakeIntake, texts: SlowTexts
) -> None:
    texts.waits = lambda _: len(texts.begun) == 1
    first = make_intake("r1", FakePrefills(), intake_silence=15)
    future = queue.submit("text", id="text")
    wait_for(lambda: texts.begun)
    first.close()
    make_intake("r2", FakePrefills(), intake_silence=15)
    answer = future.result(10)
    assert (answer.replica, answer.attempt) == ("r2", 1)


def test_what_a_replica_hands_back_does_not_come_back_to_it(
    queue: PrefillQueue, make_intake: MakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for jobs while it has room, and the server would hand it what it has just handed back."""
    prefills = FakePrefills(seconds=60)
    first = make_intake("r1", prefills, intake_ahead=40, intake_silence=60)
    futures = [queue.submit([1, number], id=f"{number}") for number in range(30)]
    wait_for(lambda: len(prefills.asked) == 30)
    came: list[Any] = []
    monkeypatch.setattr(first, "_enter", came.append)
    first.close()
    assert (came, first.counts.outcomes) == ([], {"handed back": 30})
    make_intake("r2", FakePrefills(), intake_ahead=40, intake_silence=60)
    assert {future.result(10).replica for future in futures} == {"r2"}


def test_a_replica_that_stops_begins_none_of_the_texts_that_wait(
    queue: PrefillQueue, make_intake: MakeIntake, texts: SlowTexts
) -> None:
    """However many: each would have its thread, and its turn, until there is no time left to hand the others back."""
    first = make_intake("r1", FakePrefills(), intake_ahead=40, intake_silence=60)
    futures = [queue.submit("text", id=f"text {number}") for number in range(40)]
    wait_for(lambda: first.counts.held == 40)
    first.close()
    assert len(texts.begun) == 1
    texts.made.set()
    make_intake("r2", FakePrefills(), intake_ahead=40, intake_silence=60)
    assert {(future.result(10).replica, future.result(10).attempt) for future in futures} == {("r2", 1)}
