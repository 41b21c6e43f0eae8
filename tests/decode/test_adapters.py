"""Answers through LoRA adapters, beside others in the same steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker import token_ids
from wavepp_worker.decode.config import DecodeConfig
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.errors import InvalidRequest

from tests.support.decode_bench import Collector, DecodeBench
from tests.support.lora_adapters import make_adapter, merge
from tests.support.reference import Reference


def test_texts_equal_those_of_merged_models(tiny_llama: Path, tmp_path: Path, prompt: Any) -> None:
    paths = {name: make_adapter(tmp_path / name, tiny_llama, seed=len(name)) for name in ("one", "other")}
    modules = tuple(f"{name}={path}" for name, path in paths.items())
    config = DecodeConfig(
        model=tiny_llama, lora_modules=modules, dtype="float32", kv_tokens=1200, max_model_len=200
    )
    plain = {
        name: Reference(merge(tmp_path / f"{name}-merged", tiny_llama, path)) for name, path in paths.items()
    }
    plain[""] = Reference(tiny_llama)
    with DecodeEngine(config) as engine:
        asked = []
        for n, name in enumerate(["one", "", "other", "one", ""]):
            outputs, packed = Collector(), token_ids.pack(prompt(20 + n))
            request = DecodeRequest(request_id=f"r{n}", tokens=packed, max_tokens=12, lora=name, handoff=None)
            engine.submit(request, outputs)
            asked.append((name, n, outputs))
        for name, n, outputs in asked:
            assert outputs.last.error is None
            assert outputs.ids == plain[name].generate(prompt(20 + n), 12)
        with pytest.raises(InvalidRequest, match="LoRA adapter 'third' is not loaded"):
            engine.submit(
                DecodeRequest(request_id="r", tokens=packed, max_tokens=2, lora="third", handoff=None), print
            )


def test_kv_of_another_adapter_is_not_continued(
    bench: Callable[..., DecodeBench], tiny_llama: Path, tmp_path: Path, prompt: Any
) -> None:
    """It was prefilled without one, as a worker would that was started with other adapters."""
    b = bench(lora_modules=(f"one={make_adapter(tmp_path / 'one', tiny_llama)}",))
    refused = b.submit(prompt(9), lora="one").last
    assert refused.error_kind == "HandoffError"
    assert refused.error is not None
    assert "goes through the LoRA adapter one@" in refused.error
    assert "but none where it was prefilled; start both workers with the same lora_modules" in refused.error
    assert b.submit(prompt(9)).reason == "length"
