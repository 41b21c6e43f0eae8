"""Thousands of requests, half of them cancelled, over many real ranks with small pools: ``make soak``."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import RequestAborted
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "values",
    [
        {"pp": 4, "kv_tokens": (700, 900, 650, 1200), "host_kv_tokens": (0, 300, 600, 0)},
        {"pp": 8, "kv_tokens": 650},
        {"pp": 4, "kv_tokens": 700, "ownership": "none"},
        {"pp": 4, "kv_tokens": 700, "admission": "lockstep"},
    ],
    ids=["pp4", "pp8", "pp4-none", "pp4-lockstep"],
)
def test_an_abort_storm_over_a_full_cache(
    deep_llama: Path, deep_reference: Reference, values: dict[str, Any]
) -> None:
    """S01, S08, promise 10: 90 % shared prefixes, half cancelled at random instants; nothing hangs or leaks."""
    seed = int(os.environ.get("WAVEPP_SEED", random.randrange(2**32)))
    count = int(os.environ.get("WAVEPP_REQUESTS", 3000))
    print(f"seed {seed} (WAVEPP_SEED), {count} requests (WAVEPP_REQUESTS)")
    maker = PromptMaker(seed)
    config = EngineConfig(
        model=deep_llama,
        dtype="float32",
        max_num_batched_tokens=48,
        block_size=4,
        max_model_len=600,
        max_num_seqs=8,
        **values,
    )
    slots = threading.Semaphore(48)
    checked = aborted = 0
    with PrefillEngine(config) as engine:
        jobs = []
        for index in range(count):
            slots.acquire()
            prompt, name = maker.prompt(shared=0.9), f"s{index}"
            future = engine.submit(PrefillRequest.of(name, prompt, sampling=SamplingParams(logprobs=5)))
            future.add_done_callback(lambda _: slots.release())
            jobs.append((prompt, future))
            if maker.random.random() < 0.5:
                threading.Timer(maker.random.random() ** 3, engine.abort, (name,)).start()
            if index % 500 == 499:
                time.sleep(0.2)
        for index, (prompt, future) in enumerate(jobs):
            try:
                result = future.result(120)
            except RequestAborted:
                aborted += 1
                continue
            if index % 10 == 0:
                checked += 1
                expected = deep_reference.next_logprobs(prompt)
                assert result.first_token == int(expected.argmax()), f"seed {seed}, request {index}"
                assert len(result.top_logprobs) == 5
                for token, logprob in result.top_logprobs:
                    assert abs(logprob - float(expected[token])) < 1e-3, f"seed {seed}, request {index}"
        engine.audit()
    assert aborted > count / 20
    assert checked > count / 100
