"""Turn a llama-architecture GGUF file into a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from wavepp_worker.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGUFReader

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert_gguf(
    gguf_file: Path, out: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Write config, generation config, tokenizer and bfloat16 safetensors of ``gguf_file`` into ``out``.

    Args:
        gguf_file: a llama-architecture GGUF with a GPT-2 style (byte-level BPE) tokenizer; weights of any
            quantisation that the ``gguf`` package can undo.
        out: an existing, empty directory.
        progress: called with (tensors done, tensors in all).

    Raises:
        ConfigError: the ``gguf`` package is missing, or the file is of another architecture.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            "model: converting the default model needs the package gguf, of the extra demo: in this project's "
            "directory, pip install '.[demo]'; or give --model a Hugging Face directory"
        ) from None
    reader = GGUFReader(str(gguf_file))
    architecture, tokenizer = _get(reader, "general.architecture"), _get(reader, "tokenizer.ggml.model")
    if architecture != "llama" or tokenizer != "gpt2":
        raise ConfigError(
            f"model: {gguf_file} has architecture {architecture} and tokenizer {tokenizer}; only llama with "
            "a gpt2 tokenizer can be converted"
        )
    _write_config(reader, out)
    _write_tokenizer(reader, out)
    _write_weights(reader, out, progress)


def _get(reader: GGUFReader, key: str) -> Any:
    field = reader.fields.get(key)
    if field is None:
        raise ConfigError(f"model: the GGUF file lacks {key}, so it cannot be converted")
    return field.contents()


def _tied(reader: GGUFReader) -> bool:
    return all(tensor.name != "output.weight" for tensor in reader.tensors)


def _write_config(reader: GGUFReader, out: Path) -> None:
    from transformers import GenerationConfig, LlamaConfig

    special = {
        "bos_token_id": _get(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _get(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _get(reader, "tokenizer.ggml.padding_token_id"),
    }
    heads = _get(reader, "llama.attention.head_count")
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=_get(reader, "llama.vocab_size"),
        hidden_size=_get(reader, "llama.embedding_length"),
        intermediate_size=_get(reader, "llama.feed_forward_length"),
        num_hidden_layers=_get(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=_get(reader, "llama.attention.head_count_kv"),
        head_dim=_get(reader, "llama.rope.dimension_count"),
        max_position_embeddings=_get(reader, "llama.context_length"),
        # GGUF keeps it as float32, which would otherwise read 9.999999747378752e-06.
        rms_norm_eps=float(str(np.float32(_get(reader, "llama.attention.layer_norm_rms_epsilon")))),
        rope_parameters={"rope_type": "default", "rope_theta": float(_get(reader, "llama.rope.freq_base"))},
        tie_word_embeddings=_tied(reader),
        dtype="bfloat16",
        **special,
    )
    config.save_pretrained(out)
    GenerationConfig(**special).save_pretrained(out)


def _write_tokenizer(reader: GGUFReader, out: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = _get(reader, "tokenizer.ggml.tokens")
    kinds = _get(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _get(reader, "tokenizer.ggml.merges")]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if _get(reader, "tokenizer.ggml.pre") == "smollm"
        else byte_level
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[_get(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[_get(reader, "tokenizer.ggml.eos_token_id")],
        pad_token=tokens[_get(reader, "tokenizer.ggml.padding_token_id")],
        unk_token=tokens[_get(reader, "tokenizer.ggml.unknown_token_id")],
        model_max_length=_get(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _get(reader, "tokenizer.chat_template")
    # Inline in tokenizer_config.json, where every reader of the directory finds it.
    tokenizer.save_pretrained(out, save_jinja_files=False)


def _write_weights(reader: GGUFReader, out: Path, progress: Callable[[int, int], None]) -> None:
    from gguf import dequantize

    heads = {
        "attn_q": _get(reader, "llama.attention.head_count"),
        "attn_k": _get(reader, "llama.attention.head_count_kv"),
    }
    weights: dict[str, torch.Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        progress(done, len(reader.tensors))
        array = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in _TOP:
            name = _TOP[tensor.name]
        else:
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER[part]}.weight"
            if part in heads:
                array = _unpermute_rope(array, heads[part])
        weights[name] = torch.tensor(array, dtype=torch.bfloat16)
    file = out / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors writes it for the owner alone
    progress(len(reader.tensors), len(reader.tensors))


def _unpermute_rope(array: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two halves of each rotary pair; transformers keeps the halves apart."""
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
