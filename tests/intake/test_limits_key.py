"""The limits of remote prefills as a key of etcd says them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker.intake.limits_key import LimitsKey, limits_key
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.prefill_limits import PrefillLimits
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill

from tests.support.etcd_server import EtcdServer
from tests.support.nats_servers import NatsServer
from tests.support.waiting import until

STARTED = PrefillLimits(max_local_prefill_length=1000, max_prefill_queue_size=2)
KEY = "wavepp/tests/a model/remote_prefill"


def limits(local: int, queued: int) -> PrefillLimits:
    return PrefillLimits(max_local_prefill_length=local, max_prefill_queue_size=queued)


def test_a_value_changes_what_it_names_and_no_value_nothing() -> None:
    key = LimitsKey(STARTED)
    assert key.limits(b'{"max_prefill_queue_size": 7}') == limits(1000, 7)
    assert key.limits(b'{"max_local_prefill_length": 0}') == limits(0, 2)
    assert key.limits(None) == STARTED
    assert limits_key(QueueName("tests", "a model")) == KEY


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"4000", "no JSON object like"),
        (b"{", "no JSON object like"),
        (b'{"a": "\xff"}', "no JSON object like"),
        (b'{"a": ' + b"[" * 100_000, "no JSON object like"),
        (b'{"max_local": 4}', "give max_local_prefill_length or max_prefill_queue_size"),
        (b'{"max_prefill_queue_size": -1}', "whole numbers of at least 0"),
    ],
)
def test_what_is_no_limit_is_refused_with_a_sentence(
    value: bytes, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert LimitsKey(STARTED).limits(value) is None
    assert "is refused, and the limits stay as they are: " in caplog.text
    assert sentence in caplog.text


@pytest.mark.parametrize(
    "value",
    [{"max_local_prefill_length": "y" * 100_000}, {"y" * 100_000: 1}, {"max_local_prefill_length": 10**4000}],
    ids=["a text", "a name", "a number"],
)
def test_a_value_is_refused_in_few_words_however_long_it_is(
    value: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert LimitsKey(STARTED).limits(json.dumps(value).encode()) is None
    assert len(caplog.text) < 1000


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    yield server
    server.close()


def test_a_decode_worker_follows_the_key(
    etcd: EtcdServer, nats: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The second of two that is there is found.
    monkeypatch.setenv("ETCD_ENDPOINTS", f"http://127.0.0.1:1,{etcd.url}")
    config = RemotePrefillConfig(remote_prefill="nats", nats_server=nats.url)
    etcd.put(KEY, json.dumps({"max_local_prefill_length": 5}))

    async def scenario() -> None:
        remote = RemotePrefill(config, QueueName("tests", "a model"), etcd=True)
        assert remote.limits == STARTED
        await remote.open()
        try:
            await until(lambda: remote.limits == limits(5, 2))
            await asyncio.to_thread(etcd.put, KEY, json.dumps({"max_prefill_queue_size": 9}))
            await until(lambda: remote.limits == limits(1000, 9))
            await asyncio.to_thread(etcd.put, KEY, json.dumps({"max_prefill_queue_size": "many"}))
            await until(lambda: "is refused" in caplog.text)
            assert remote.limits == limits(1000, 9)
            # Another key is none of ours.
            await asyncio.to_thread(etcd.put, f"{KEY}/x", json.dumps({"max_prefill_queue_size": 1}))
            await asyncio.to_thread(etcd.delete, KEY)
            await until(lambda: remote.limits == STARTED)
        finally:
            await remote.close()

    asyncio.run(scenario())
