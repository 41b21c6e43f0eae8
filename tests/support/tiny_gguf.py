"""A tiny model as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.support import tiny_models


def write_gguf(tiny_llama: Path, path: Path) -> None:
    """Write ``tiny_llama`` to ``path``, with the rows of queries and keys in GGUF's order."""
    config = json.loads((tiny_llama / "config.json").read_text())
    tokenizer = json.loads((tiny_llama / "tokenizer.json").read_text())
    tokens = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
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
