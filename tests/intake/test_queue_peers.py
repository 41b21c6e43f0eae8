"""Graphs whose models have one name and other weights, on one queue."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
import nats
import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.intake import intake as intake_module
from wavepp_worker.intake import opening, queue_peers
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.job_consumers import JobConsumers
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.queue_peers import Peer, QueuePeers
from wavepp_worker.intake.streams import QueueStreams

from tests.intake.conftest import MakeIntake
from tests.intake.test_intake import stand_still, wait_for
from tests.support.fake_prefills import FakePrefills
from tests.support.held_link import HeldLink
from tests.support.nats_servers import NatsServer

PATIENCE = 15.0
"""Until a replica that does not answer counts as gone: longer than a busy machine lets one wait."""
_CHILD = """
import sys
from tests.support.fake_prefills import FakePrefills
from wavepp_worker.intake import opening, queue_peers
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName
opening.AT_ONCE_SECONDS = 60.0
url, namespace, model, replica, model_id = sys.argv[1:]
config = IntakeConfig(intake="nats", nats_server=url)
intake = Intake(FakePrefills(model_id=model_id), config, QueueName(namespace, model))
intake.start(replica)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts waits until it takes jobs, or is refused."""
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 60.0)


class Replica:
    """One that opens a queue, on a connection of its own."""

    def __init__(self, server: NatsServer, name: QueueName, replica: str, model: str) -> None:
        self._server, self._name, self._replica, self._model = server, name, replica, model

    async def __aenter__(self) -> Replica:
        self._connection = await nats.connect(self._server.url)
        consumers = JobConsumers(self._connection, self._name)
        await QueueStreams(self._connection, self._name).ensure()
        await consumers.ensure(self._replica, 1.0)
        self._peers = QueuePeers(
            self._connection, self._name, consumers, self._replica, self._model, PATIENCE, lambda: True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def joins(self) -> bool:
        try:
            await self._peers.join()
        except ConfigError:
            return False
        return True


@pytest.mark.parametrize("state", ["idle", "busy", "paused"])
def test_a_replica_with_other_weights_is_refused_while_another_takes_jobs(
    queue: PrefillQueue, make_intake: MakeIntake, name: QueueName, state: str
) -> None:
    there = FakePrefills(model_id="a", admits=1, seconds=0.0 if state == "idle" else 60.0)
    first = make_intake("r1", there, intake_ahead=1)
    if state == "busy":
        jobs = [queue.submit([1, n]) for n in range(4)]
        # One runs and one waits: it asks for no further jobs.
        wait_for(lambda: (there.running, there.waiting) == (1, 1))
        wait_for(lambda: not first._room())
    first.pause(paused=state == "paused")
    with pytest.raises(ConfigError) as refused:
        make_intake("r2", FakePrefills(model_id="b"), intake_silence=PATIENCE)
    assert str(refused.value) == (
        f"replica r1 takes jobs of {queue.called} now with other weights (model id a, here b), and one queue would "
        "have the answers of both; start one of the graphs with another --namespace or --served-model-name, or stop "
        "the other one first"
    )
    make_intake("r3", FakePrefills(model_id="a"), intake_silence=PATIENCE)
    there.release.set()
    if state == "busy":
        assert [job.result(20).replica in ("r1", "r3") for job in jobs] == [True] * 4
    assert {queue.submit([2, n]).result(20).replica for n in range(8)} <= {"r1", "r3"}


def test_a_graph_that_has_stopped_or_is_about_to_hinders_none(
    queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    make_intake("r1", FakePrefills(model_id="a"), intake_silence=PATIENCE).close()
    begun = time.monotonic()
    second = make_intake("r2", FakePrefills(model_id="b"), intake_silence=PATIENCE)
    assert time.monotonic() - begun < PATIENCE
    assert queue.prefill([1, 2]).replica == "r2"
    # What it has begun goes on.
    second.stop_taking()
    make_intake("r3", FakePrefills(model_id="c"), intake_silence=PATIENCE)
    assert queue.prefill([1, 3]).replica == "r3"


def test_a_killed_worker_hinders_none(
    server: NatsServer, name: QueueName, queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    words = [sys.executable, "-c", _CHILD, server.url, name.namespace, name.model, "r1", "a"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(ConfigError, match="replica r1 takes jobs"):
            make_intake("r2", FakePrefills(model_id="b"), intake_silence=PATIENCE)
        child.kill()
    begun = time.monotonic()
    make_intake("r2", FakePrefills(model_id="b"), intake_silence=PATIENCE)
    assert time.monotonic() - begun < PATIENCE
    assert queue.prefill([1, 2]).replica == "r2"


def test_one_that_does_not_say_who_it_is_is_waited_for_no_longer_than_promised(
    queue: PrefillQueue, make_intake: MakeIntake
) -> None:
    first = make_intake("r1", FakePrefills(model_id="a"), intake_silence=PATIENCE)
    over = stand_still(first, 60)
    begun = time.monotonic()
    make_intake("r2", FakePrefills(model_id="b"), intake_silence=1)
    assert 1.0 <= time.monotonic() - begun < 10.0
    assert queue.prefill([1, 2]).replica == "r2"
    over.set()


def test_a_start_waits_for_what_a_slow_replica_says(
    queue: PrefillQueue, make_intake: MakeIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_intake("r1", FakePrefills(model_id="a"), intake_silence=PATIENCE)
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 1.0)
    stand_still(first, 3.0)
    with pytest.raises(ConfigError, match="replica r1 takes jobs"):
        make_intake("r2", FakePrefills(model_id="b"), intake_silence=PATIENCE)


def test_one_that_others_counted_as_gone_takes_no_jobs_beside_those_with_other_weights(
    queue: PrefillQueue, make_intake: MakeIntake, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_intake("r1", FakePrefills(model_id="a"), intake_silence=1)
    over = stand_still(first, 60)
    second = make_intake("r2", FakePrefills(model_id="b"), intake_silence=1)
    over.set()
    wait_for(lambda: "not open any more (replica r2 takes jobs" in caplog.text)
    answers = [queue.submit([1, n]) for n in range(8)]
    answers.append(queue.submit([1, 8], replica="r1"))
    assert {answer.result(20).replica for answer in answers} == {"r2"}
    second.close()
    assert queue.prefill([1, 9]).replica == "r1"


def test_one_whose_network_broke_takes_no_jobs_beside_those_with_other_weights(
    server: NatsServer, queue: PrefillQueue, make_intake: MakeIntake, caplog: pytest.LogCaptureFixture
) -> None:
    link = HeldLink(server.port)
    try:
        url = f"nats://127.0.0.1:{link.port}"
        first = make_intake("r1", FakePrefills(model_id="a"), intake_silence=1, nats_server=url)
        assert queue.prefill([1, 2]).replica == "r1"
        with link.held():
            second = make_intake("r2", FakePrefills(model_id="b"), intake_silence=1)
            assert not first._membership.holds
            assert queue.prefill([1, 3]).replica == "r2"
        answers = [queue.submit([2, n]) for n in range(16)]
        answers.append(queue.submit([2, 16], replica="r1"))
        assert {answer.result(20).replica for answer in answers} == {"r2"}
        wait_for(lambda: "not open any more (replica r2 takes jobs" in caplog.text)
        second.close()
        assert queue.prefill([1, 4]).replica == "r1"
        # Its connection had not noticed.
        assert first._membership._peers.losses == 0
    finally:
        first.close()
        link.close()


@pytest.mark.parametrize("models", ["ab", "ba", "aa"])
def test_of_two_that_open_a_queue_at_the_same_time_one_does(
    server: NatsServer, name: QueueName, models: str
) -> None:
    async def run() -> list[bool]:
        async with (
            Replica(server, name, "r1", models[0]) as first,
            Replica(server, name, "r2", models[1]) as second,
        ):
            return list(await asyncio.gather(second.joins(), first.joins()))

    for _ in range(5):
        assert sorted(asyncio.run(run())) == [models == "aa", True]


@pytest.mark.parametrize("then", ["stopped", "opening"])
def test_one_that_opens_the_queue_first_has_its_time_however_late_it_is_heard_of(
    server: NatsServer, name: QueueName, monkeypatch: pytest.MonkeyPatch, then: Literal["stopped", "opening"]
) -> None:
    monkeypatch.setattr(queue_peers, "RIVAL_SECONDS", 0.4)
    asked = 0

    async def answer(message: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.sleep(1.0)
        peer = Peer("r1", "b", "opening" if asked == 1 else then)
        await message.respond(msgspec.json.encode(peer))

    async def run() -> None:
        async with Replica(server, name, "r2", "a") as later:
            connection = await nats.connect(server.url)
            await JobConsumers(connection, name).ensure("r1", 1.0)
            await connection.subscribe(name.replica("r1"), cb=answer)
            await connection.flush()
            try:
                await later._peers.join()
            finally:
                await connection.close()

    if then == "stopped":
        asyncio.run(run())
    else:
        with pytest.raises(ConfigError, match="replica r1 is about to take jobs of model"):
            asyncio.run(run())
    assert asked > 1


def test_two_workers_that_start_at_the_same_time_never_both_take_jobs(
    server: NatsServer, name: QueueName, queue: PrefillQueue
) -> None:
    config = IntakeConfig(intake="nats", nats_server=server.url)
    for turn in range(6):
        intakes = {model: Intake(FakePrefills(model_id=model), config, name) for model in "ab"}
        together, taken = threading.Barrier(2), dict[str, bool]()

        def start(
            model: str, turn: int, intakes: Any = intakes, together: Any = together, taken: Any = taken
        ) -> None:
            together.wait()
            try:
                intakes[model].start(f"{model}{turn}")
                taken[model] = True
            except ConfigError:
                taken[model] = False

        threads = [threading.Thread(target=start, args=(model, turn)) for model in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for intake in intakes.values():
            intake.close()
        assert sorted(taken.values()) == [False, True]


def test_one_that_is_refused_itself_hinders_none(server: NatsServer, name: QueueName) -> None:
    async def run() -> list[bool]:
        async with (
            Replica(server, name, "r9", "a") as there,
            Replica(server, name, "r1", "b") as other,
            Replica(server, name, "r2", "a") as more,
        ):
            assert await there.joins()
            return list(await asyncio.gather(other.joins(), more.joins()))

    assert asyncio.run(run()) == [False, True]


def test_who_waited_for_the_server_lets_those_come_back_who_were_there(
    tmp_path: Path, name: QueueName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2)
    monkeypatch.setattr(opening, "AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(intake_module, "BACK_SECONDS", 2.0)
    server = NatsServer(tmp_path)
    server.start()
    config = IntakeConfig(intake="nats", nats_server=server.url)
    first, second = (Intake(FakePrefills(model_id=model), config, name) for model in "ab")
    try:
        first.start("r1")
        with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as queue:
            assert queue.prefill([1, 2]).replica == "r1"
            server.kill()
            second.start("r2")
            time.sleep(intake_module.BACK_SECONDS)
            stand_still(first, 1.0)
            server.start()
            wait_for(lambda: "with other weights" in caplog.text, 15)
            assert {queue.submit([1, n]).result(20).replica for n in range(8)} == {"r1"}
            first.close()
            assert queue.prefill([1, 20]).replica == "r2"
    finally:
        first.close()
        second.close()
        server.close()


def test_a_server_that_loses_its_store_does_not_let_in_who_was_refused(
    tmp_path: Path, name: QueueName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(opening, "AGAIN_SECONDS", 0.2)
    server = NatsServer(tmp_path)
    server.start()
    config = IntakeConfig(intake="nats", nats_server=server.url)
    first, second = (Intake(FakePrefills(model_id=model), config, name) for model in "ab")
    try:
        first.start("r2")
        server.kill()
        monkeypatch.setattr(opening, "AT_ONCE_SECONDS", 0.2)
        second.start("r1")
        server.start()
        wait_for(lambda: "replica r2 takes jobs" in caplog.text, 15)
        server.kill()
        shutil.rmtree(tmp_path / "jetstream")
        server.start()
        with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as queue:
            # Until well after the other was tried again.
            for _ in range(20):
                assert queue.submit([1, 2]).result(20).replica == "r2"
                time.sleep(0.2)
    finally:
        first.close()
        second.close()
        server.close()
