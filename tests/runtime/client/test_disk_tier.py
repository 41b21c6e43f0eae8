"""Engines over disk tiers that outlive them, and that are damaged: what is reused is right, and the router knows it."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavepp_worker import EngineConfig, PrefillEngine, PrefillResult, token_ids
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.runtime.protocol.index_delta import IndexDelta
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.tiers.disk_format import PAGE_BYTES, record_bytes

from tests.support.prompts import PromptMaker
from tests.support.reference import Reference

BLOCK = 8
Damage = Callable[[PrefillEngine, Path], None]


def config(model: Path, folder: Path, **values: Any) -> EngineConfig:
    """The device holds one prompt of 300 tokens, and the disk of each rank three."""
    settings: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "pp": 2,
        "max_num_batched_tokens": 64,
        "block_size": BLOCK,
        "kv_tokens": 320,
        "max_model_len": 320,
        "disk_kv_tokens": (960, 1120),
        "disk_path": folder / "kv",
    }
    return EngineConfig(**(settings | values))


class Router:
    """What a router believes: the prefixes it can follow from the root, by salt."""

    def __init__(self) -> None:
        self.blocks: dict[Any, tuple[Any, tuple[int, ...], str]] = {}

    def on_index(self, delta: IndexDelta) -> None:
        parent = delta.parent
        for at, key in enumerate(delta.stored):
            tokens = token_ids.unpack(token_ids.part(delta.tokens, at * BLOCK, (at + 1) * BLOCK))
            assert len(tokens) == BLOCK
            assert parent is None or parent in self.blocks, "a child before its parent"
            self.blocks[key] = (parent, tuple(np.asarray(tokens).tolist()), delta.salt)
            parent = key
        for key in delta.removed:
            del self.blocks[key]

    def known(self, prompt: list[int], salt: str = "") -> int:
        """Tokens of a prompt that it believes reusable."""
        below = {(parent, tokens): key for key, (parent, tokens, its) in self.blocks.items() if its == salt}
        at, parent = 0, None
        while (parent, tuple(prompt[at : at + BLOCK])) in below:
            parent = below[parent, tuple(prompt[at : at + BLOCK])]
            at += BLOCK
        return at


def check(reference: Reference, prompt: list[int], result: PrefillResult) -> None:
    assert result.first_token == int(reference.next_logprobs(prompt).argmax())


def ask(engine: PrefillEngine, name: str, prompt: list[int], salt: str = "") -> PrefillResult:
    request = PrefillRequest.of(name, prompt, salt=salt, sampling=SamplingParams(logprobs=1))
    return engine.submit(request).result(120)


def test_many_lives_over_one_disk_tier_with_evictions_in_each(
    tiny_llama: Path, reference: Reference, tmp_path: Path
) -> None:
    """What an earlier life left is announced, and may be evicted."""
    maker = PromptMaker(seed=12)
    left: list[tuple[list[int], str]] = []
    for life in range(3):
        router = Router()
        with PrefillEngine(config(tiny_llama, tmp_path), on_index=router.on_index) as engine:
            assert any(router.known(*each) for each in left) == (life > 0), "told before the engine is ready"
            for prompt, salt in left:
                known = min(router.known(prompt, salt), 296)
                result = ask(engine, f"again{len(prompt)}{salt}", prompt, salt)
                assert result.reused_tokens == known
                check(reference, prompt, result)
            left = [(maker.tokens(300), salt) for salt in ("", f"tenant {life}", "")]
            for at, (prompt, salt) in enumerate(left):
                check(reference, prompt, ask(engine, f"new{at}", prompt, salt))
            engine.audit()
        assert all(router.known(*each) for each in left[1:])


def flip(engine: PrefillEngine, folder: Path) -> None:
    """All blocks of rank 1 lose their bytes, and their records do not."""
    path = folder / "rank1.blocks"
    with path.open("r+b") as file:
        size, start = path.stat().st_size, PAGE_BYTES + record_bytes(0) * (1120 // BLOCK)
        file.seek(start)
        file.write(b"?" * (size - start))


def cut_off(engine: PrefillEngine, folder: Path) -> None:
    os.truncate(folder / "rank0.blocks", (folder / "rank0.blocks").stat().st_size // 2)
    os.truncate(folder / "rank1.blocks", 5000)


def full(engine: PrefillEngine, folder: Path) -> None:
    """No file may be written beyond its first page (EFBIG)."""
    for pid in engine.rank_pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (PAGE_BYTES, PAGE_BYTES))


def gone(engine: PrefillEngine, folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize("damages", [pytest.param((flip, cut_off), marks=pytest.mark.soak), (gone, full)])
def test_damage_while_running_costs_computations_and_nothing_else(
    tiny_llama: Path,
    reference: Reference,
    tmp_path: Path,
    damages: tuple[Damage, ...],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No rank ends, no answer is wrong, the books balance; the next life begins with what is left."""
    maker, router = PromptMaker(seed=9), Router()
    prompts = [maker.tokens(300) for _ in range(3)]
    with PrefillEngine(config(tiny_llama, tmp_path), on_index=router.on_index) as engine:
        pids = engine.rank_pids
        for damage in (None, *damages):
            if damage is not None:
                damage(engine, tmp_path / "kv")
            for turn in range(2):
                futures = [
                    engine.submit(PrefillRequest.of(f"{damage}{turn}{at}", prompt))
                    for at, prompt in enumerate(prompts)
                ]
                for prompt, future in zip(prompts, futures, strict=True):
                    check(reference, prompt, future.result(120))
                engine.audit()
        assert engine.rank_pids == pids
        # Which of them is admitted last depends on what each finds in the cache.
        assert any(router.known(prompt) >= 296 for prompt in prompts), "the device goes on"
    told = r"^[\d-]{10}T[\d:.]{15}Z  WARN wavepp_worker\S+: .*(blocks on disk are damaged|is switched off).* rank=[01]$"
    assert re.search(told, capfd.readouterr().err, re.MULTILINE), "ranks say it, and when"
    with PrefillEngine(config(tiny_llama, tmp_path)) as engine:
        for prompt in prompts:
            check(reference, prompt, engine.prefill(prompt))
        engine.audit()
