"""Ranks whose blocks hold no numbers until they are written: no answer is made of one."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path

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
