from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.support import fake_engines as fakes


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with hardly any weights: a byte-level tokenizer of 256 bytes and two special tokens."""
    directory = tmp_path_factory.mktemp("text-model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 258}))
    save_file({"weight": np.zeros(1, np.float32)}, directory / "model.safetensors")
    return directory


@pytest.fixture
def fake_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers built in this test get fake engines and a fake bootstrap server."""
    from wavepp_worker.dynamo import decode_handler, forward_passes, prefill_handler

    monkeypatch.setattr(forward_passes, "FpmDirectPublisher", fakes.FakeFpmPublisher)
    monkeypatch.setattr(prefill_handler, "PrefillEngine", fakes.FakePrefillEngine)
    monkeypatch.setattr(prefill_handler, "BootstrapServer", fakes.FakeBootstrap)
    monkeypatch.setattr(decode_handler, "DecodeEngine", fakes.FakeDecodeEngine)
    monkeypatch.setattr(fakes.FakeBootstrap, "rooms", {})


@pytest.fixture(params=["prefill", "decode", "agg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
