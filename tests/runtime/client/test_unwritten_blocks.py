"""Ranks whose blocks hold no numbers until they are written: no answer is made of one."""

from __future__ import annotations

import contextlib
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker import EngineConfig, PrefillEngine
from wavepp_worker.errors import RequestAborted
from wavepp_worker.runtime.client import rank_processes
from wavepp_worker.runtime.protocol.requests import PrefillRequest

from tests.support import poisoning_rank
from tests.support.prompts import PromptMaker
from tests.support.reference import Reference, assert_right
from tests.support.tiny_models import make_model


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("llama", {"pp": 3, "partition": (1, 3, 2), "block_size": 3, "max_num_batched_tokens": 29}),
        ("llama", {"pp": 2, "block_size": 16, "max_num_batched_tokens": 64, "host_kv_tokens": 900}),
        ("gpt_oss", {"pp": 2, "block_size": 8, "max_num_batched_tokens": 48}),
    ],
    ids=["llama", "host tier", "gpt_oss"],
)
def test_readers_of_blocks_in_the_making_never_read_one_before_it_is_written(
    family: str, values: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of cold prefixes, of which writers and readers give up at odd moments while others take their room."""
    monkeypatch.setattr(rank_processes, "RANK_MODULE", poisoning_rank.MODULE)
    model = make_model(tmp_path / family, family)
    settings = EngineConfig(model=model, dtype="float32", kv_tokens=1200, max_model_len=420, **values)
    reference, maker, draw = Reference(model), PromptMaker(seed=20), random.Random(20)
    reused = 0
    with PrefillEngine(settings) as engine:
        for turn in range(6):
            system = maker.tokens(draw.randrange(40, 160))
            documents = [system + maker.tokens(draw.randrange(30, 130)) for _ in range(2)]
            prompts = [
                system + maker.tokens(9),
                *(document + maker.tokens(draw.randrange(1, 40)) for document in documents for _ in range(3)),
                maker.tokens(200),
            ]
            futures = [
                engine.submit(PrefillRequest.of(f"{turn}-{at}", prompt)) for at, prompt in enumerate(prompts)
            ]
            given_up = draw.sample(range(len(prompts)), turn % 4)
            for at in given_up:
                time.sleep(draw.choice([0.0, 0.002, 0.01]))
                engine.abort(f"{turn}-{at}")
            for at, (prompt, future) in enumerate(zip(prompts, futures, strict=True)):
                with contextlib.suppress(RequestAborted) if at in given_up else contextlib.nullcontext():
                    result = future.result(60)
                    assert_right(reference, prompt, result)
                    reused += result.reused_tokens
        engine.audit()
    assert reused > 1000, "of what was computed for others meanwhile"


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("llama", {"pp": 1}),
        ("llama", {"pp": 2, "kv_dtype": "fp8"}),
        ("mistral", {"pp": 1, "block_size": 3}),
        ("deepseek_v3", {"pp": 2}),
        ("glm_moe_dsa", {"pp": 1}),
        ("gemma2", {"pp": 2}),
    ],
    ids=["llama", "fp8", "windows kept whole", "latent attention", "indexed attention", "sliding windows"],
)
def test_readers_in_the_wave_of_their_writers_read_what_it_writes(
    family: str, values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bursts that come while something else is computed; where a layer lets go of tokens, nobody shares a wave."""
    monkeypatch.setattr(rank_processes, "RANK_MODULE", poisoning_rank.MODULE)
    rides = tmp_path / "rides"
    rides.touch()
    monkeypatch.setenv(poisoning_rank.RIDES, str(rides))
    model = make_model(tmp_path / family, family)
    sizes = {"kv_tokens": 6000, "max_model_len": 600, "max_num_batched_tokens": 600}
    settings = EngineConfig(model=model, dtype="float32", **{**sizes, **values})
    reference, maker = Reference(model), PromptMaker(seed=21)
    with PrefillEngine(settings) as engine:
        for turn in range(4):
            system = maker.tokens(100)
            document = system + maker.tokens(60)
            readers = [[*each, *maker.tokens(7)] for each in (system, document) * 3]
            prompts = [*(maker.tokens(500) for _ in range(4)), *readers, document]
            futures = [
                engine.submit(PrefillRequest.of(f"{turn}-{at}", each)) for at, each in enumerate(prompts)
            ]
            results = [future.result(60) for future in futures]
            for prompt, result in zip(prompts[4:], results[4:], strict=True):
                assert not math.isnan(result.first.logprob or 0.0)
                if "kv_dtype" not in values:
                    assert_right(reference, prompt, result)
            assert sum(result.reused_tokens for result in results) >= 5 * 96 + 2 * 48
        engine.audit()
    assert bool(rides.stat().st_size) == (family != "gemma2")
