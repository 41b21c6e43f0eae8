from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from wavepp_worker.model.files.gguf_convert import convert_gguf
from wavepp_worker.model.model_info import read_model_info


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
