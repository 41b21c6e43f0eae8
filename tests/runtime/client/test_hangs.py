"""A rank that hangs, wherever it does: its engine notices within the bound, says where, and fails what is in flight."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import EngineDead
from wavepp_worker.model.timed.timed_model import write_timed_model
from wavepp_worker.runtime.client import rank_processes
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support import hanging_rank
from tests.support.timed_models import timed_model

BOUND = 2.0
SLACK = 6.0
"""Seconds that noticing may take beyond the bound, on a machine with other work."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks that compute nothing start sooner."""
    return write_timed_model(tmp_path_factory.mktemp("timed") / "model", timed_model(speed=1000.0))


def config(model: Path, **changes: object) -> EngineConfig:
    values = {"pp": 3, "max_num_batched_tokens": 64, "kv_tokens": 2000, "max_model_len": 600}
    return EngineConfig.model_validate({"model": model, "wave_timeout": BOUND, **values, **changes})


@pytest.mark.parametrize(
    ("rank", "place", "sentence"),
    [
        (
            0,
            "forward",
            r"rank 0 failed: StepTimeout: the LOOP thread has been busy with wave \d+ \(\d+ tokens",
        ),
        (
            1,
            "forward",
            r"rank 1 failed: StepTimeout: the LOOP thread has been busy with wave \d+ \(\d+ tokens",
        ),
        (
            2,
            "forward",
            r"rank 2 failed: StepTimeout: the LOOP thread has been busy with wave \d+ \(\d+ tokens",
        ),
        (
            2,
            "device",
            r"rank 2 failed: StepTimeout: the answers thread has been busy with the device's end of",
        ),
        (
            0,
            "vote",
            r"rank 0 failed: StepTimeout: the WAVE thread has been busy with its vote on round \d+",
        ),
        (
            1,
            "vote",
            r"rank 1 failed: StepTimeout: the WAVE thread has been busy with its part of a round",
        ),
    ],
    ids=lambda value: str(value)[:8],
)
def test_a_hung_thread_of_a_rank_is_named_and_ends_the_engine(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    rank: int,
    place: str,
    sentence: str,
) -> None:
    """S01, S53: heartbeats come from a thread that does not hang, and a request waits for ever."""
    order = tmp_path / "hang"
    monkeypatch.setenv(hanging_rank.VARIABLE, str(order))
    monkeypatch.setattr(rank_processes, "RANK_MODULE", hanging_rank.MODULE)
    reasons: list[str] = []
    with PrefillEngine(config(model), on_death=reasons.append) as engine:
        # From now on, waves of such a size are known.
        engine.prefill([1] * 300)
        order.write_text(f"{rank} {place}")
        began = time.monotonic()
        future = engine.submit(PrefillRequest.of("hung", [2] * 300))
        with pytest.raises(EngineDead, match=sentence):
            future.result(BOUND + SLACK)
        assert time.monotonic() - began >= BOUND
        assert len(reasons) == 1
        assert not engine.alive
    assert "hang_if_told" in capfd.readouterr().err, "where it hangs, to find out why"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_stopped_rank_is_silent_and_ends_the_engine(model: Path, rank: int) -> None:
    """In the middle of requests, when the others wait for it; rank 0 is not blamed for waiting for a vote."""
    with PrefillEngine(config(model)) as engine:
        engine.prefill([1] * 300)
        os.kill(engine.rank_pids[rank], signal.SIGSTOP)
        began = time.monotonic()
        futures = [engine.submit(PrefillRequest.of(f"r{n}", [n] * 300)) for n in range(8)]
        for future in futures:
            with pytest.raises(EngineDead, match=rf"rank {rank} has not been heard of.*stopped by a signal"):
                future.result(max(0.1, began + BOUND + SLACK - time.monotonic()))
        assert time.monotonic() - began >= BOUND - 1


def test_a_rank_that_is_stopped_for_a_moment_goes_on(model: Path) -> None:
    """Its own watchdog does not blame it for the time in which it did not run."""
    with PrefillEngine(config(model, wave_timeout=4.0)) as engine:
        engine.prefill([1] * 300)
        for rank, pid in enumerate(engine.rank_pids):
            futures = [engine.submit(PrefillRequest.of(f"r{rank}-{n}", [n] * 600)) for n in range(8)]
            time.sleep(0.02)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(2.0)
            os.kill(pid, signal.SIGCONT)
            for future in futures:
                future.result(60)
        engine.audit()


def test_an_engine_whose_own_thread_hangs_dies(model: Path) -> None:
    """Nobody else would notice: it is the one that listens to the ranks."""
    hanging, died = threading.Event(), threading.Event()

    def hang(_: IndexDelta) -> None:
        hanging.wait(60)

    with PrefillEngine(config(model, pp=1), on_index=hang, on_death=lambda _: died.set()) as engine:
        try:
            future = engine.submit(PrefillRequest.of("unheard", [2] * 300))
            with pytest.raises(
                EngineDead, match="the engine thread has been busy with what its ranks reported"
            ):
                future.result(BOUND + SLACK)
            assert died.wait(5)
        finally:
            hanging.set()
