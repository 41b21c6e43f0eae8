from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine

from tests.support.decode_bench import DecodeBench
from tests.support.fake_transport import FakePrefill
from tests.support.stage_pair import StagePair
from tests.support.waiting import WAIT_SECONDS


@pytest.fixture(scope="session")
def prompt() -> Callable[..., np.ndarray]:
    """``prompt(length, seed)``: token ids of the tiny models, without special ones."""

    def make(length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng([length, seed]).integers(0, 297, length).astype(np.uint32)

    return make


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """One thread."""
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture(scope="session")
def ranks(tiny_llama: Path) -> StagePair:
    return StagePair(tiny_llama)


@pytest.fixture
def bench(
    tiny_llama: Path, ranks: StagePair, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., DecodeBench]]:
    """``bench(**config)``: a started engine; at the end it is closed, and audited unless it is dead."""
    started: list[DecodeBench] = []

    def make(**values: Any) -> DecodeBench:
        prefill = FakePrefill(ranks)
        monkeypatch.setattr("wavepp_worker.decode.engine.KVReceiver", prefill.receiver)
        fields = {"dtype": "float32", "kv_tokens": 1024, "max_model_len": 512, "block_size": 4, **values}
        deaths: list[str] = []
        engine = DecodeEngine(DecodeConfig(model=tiny_llama, **fields), on_death=deaths.append)
        engine.start()
        started.append(DecodeBench(engine, prefill, deaths))
        return started[-1]

    yield make
    try:
        for each in started:
            if each.engine.alive:
                audit = each.engine.audit(WAIT_SECONDS)
                assert audit["free"] == audit["capacity"]
                stats = each.engine.stats()
                assert stats.prompt_tokens_computed == 0 or stats.preemptions
    finally:
        for each in started:
            each.engine.close()
            assert each.prefill.closed
    for each in started:
        for collector in each.collectors:
            assert collector.done.is_set()
            collector.check()
