"""A tiny model that only answers printable ASCII, one byte a token, so that text shows its tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from tests.support import tiny_models


def make_ascii_model(directory: Path, family: str = "llama") -> Path:
    """Write one of a family of ``tiny_models`` into ``directory``, and return that."""
    tiny_models.make_model(directory, family, tie_word_embeddings=False)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    printable = {tokenizer.convert_tokens_to_ids(chr(code)) for code in range(33, 127)}
    silent = torch.tensor([token not in printable for token in range(len(weights["lm_head.weight"]))])
    weights["lm_head.weight"][silent] = 0.0
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
