"""The socket files of a replica's ranks: nobody else can open them, and who can ends the replica with a sentence."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
import zmq
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import EngineDead
from wavepp_worker.model.timed.timed_model import write_timed_model
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.token_ids import pack

from tests.support.timed_models import timed_model

NOTICE_SECONDS = 30.0
NO_MESSAGE = b"\xc1no message"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks that compute nothing start sooner."""
    return write_timed_model(tmp_path_factory.mktemp("timed") / "model", timed_model(speed=1000.0))


def directory(engine: PrefillEngine) -> Path:
    link = engine._state.link
    assert link is not None
    return link._run_dir


def say(file: Path, pattern: int) -> None:
    """Send what is no message to whoever listens at a socket file."""
    with zmq.Context() as context, context.socket(pattern) as socket:
        socket.set(zmq.LINGER, 1000)
        socket.set(zmq.SNDTIMEO, 1000)
        socket.connect(f"ipc://{file}")
        for _ in range(3):
            try:
                socket.send(NO_MESSAGE)
            except zmq.Again:
                return  # nobody takes it


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("commands", "rank 0 failed: "),
        ("events", "a rank's event could not be handled"),
        ("data-1", "rank 1 failed: "),
    ],
)
def test_what_is_no_message_ends_the_replica_with_a_sentence(model: Path, name: str, sentence: str) -> None:
    config = EngineConfig(model=model, pp=2, kv_tokens=2000, max_model_len=600)
    with PrefillEngine(config) as engine:
        run_dir = directory(engine)
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
        # A socket that only one may connect to takes nothing from a second, once the first is there.
        assert engine.prefill([1, 2, 3]).prompt_tokens == 3
        say(run_dir / "rounds-1", zmq.PAIR)
        assert engine.prefill([1, 2, 3]).prompt_tokens == 3
        say(run_dir / name, zmq.PUSH)
        latest = time.monotonic() + NOTICE_SECONDS
        while engine.alive:
            assert time.monotonic() < latest, "nobody noticed"
            time.sleep(0.02)
        with pytest.raises(EngineDead, match=sentence):
            engine.submit(PrefillRequest(request_id="a", tokens=pack([1])))
    assert not run_dir.exists()
