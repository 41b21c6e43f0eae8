from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wavepp_worker.intake import etcd_key
from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake import Intake
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_queue import PrefillQueue

from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.fake_prefills import FakePrefills
from tests.support.nats_servers import NatsServer

_numbers = itertools.count()

MakeIntake = Callable[..., Intake]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server for all tests of a file, each with a queue of its own; who kills it starts it again."""
    store = Path(tempfile.mkdtemp(prefix="nats-"))
    server = NatsServer(store)
    server.start()
    yield server
    server.close()
    shutil.rmtree(store, ignore_errors=True)


@pytest.fixture
def name() -> QueueName:
    """A queue that nobody else has."""
    return QueueName("tests", f"model {next(_numbers)}")


@pytest.fixture
def queue(server: NatsServer, name: QueueName) -> Iterator[PrefillQueue]:
    with PrefillQueue(name.model, namespace=name.namespace, server=server.url) as queue:
        yield queue


@pytest.fixture
def make_intake(server: NatsServer, name: QueueName) -> Iterator[MakeIntake]:
    """Call it with a replica's name, what prefills, and settings; all are closed at the end."""
    made: list[Intake] = []

    def make(replica: str, prefills: FakePrefills, **settings: object) -> Intake:
        config = IntakeConfig(
            **{"intake": "nats", "nats_server": server.url, "intake_silence": 1, **settings}
        )
        intake = Intake(prefills, config, name)
        made.append(intake)
        intake.start(replica)
        return intake

    yield make
    for intake in made:
        intake.close()


@pytest.fixture
def etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    monkeypatch.setattr(etcd_key, "AGAIN_SECONDS", 0.05)
    yield server
    server.close()
