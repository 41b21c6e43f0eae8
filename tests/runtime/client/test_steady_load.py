"""Load that never pauses: nobody takes a busy rank for dead (its long version: ``make soak``)."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference

PAUSE_SECONDS = 0.16
"""Between two requests: rounds come more often than heartbeats."""


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        pytest.param(4.0, 13.0, id="short"),
        pytest.param(8.0, 300.0, id="soak", marks=(pytest.mark.soak, pytest.mark.timeout(600))),
    ],
)
def test_steady_load_outlives_the_limit_for_a_sign_of_life(
    tiny_llama: Path, reference: Reference, limit: float, seconds: float
) -> None:
    """About six requests a second without a pause, for many times the limit; every answer is right."""
    seed = int(os.environ.get("WAVEPP_SEED", random.randrange(2**32)))
    print(f"seed {seed} (WAVEPP_SEED)")
    maker = PromptMaker(seed)
    prompts = [maker.prompt() for _ in range(40)]
    expected = [int(reference.next_logprobs(prompt).argmax()) for prompt in prompts]
    config = EngineConfig(
        model=tiny_llama, pp=2, dtype="float32", kv_tokens=2048, max_model_len=600, wave_timeout=limit
    )
    deaths: list[str] = []
    with PrefillEngine(config, on_death=deaths.append) as engine:
        jobs = []
        end = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() > end or deaths:
                break
            which = maker.random.randrange(len(prompts))
            jobs.append((which, engine.submit(PrefillRequest.of(f"r{number}", prompts[which]))))
            time.sleep(PAUSE_SECONDS)
        assert deaths == []
        for which, future in jobs:
            assert future.result(60).first_token == expected[which], f"seed {seed}"
        assert len(jobs) > seconds
        engine.audit()
