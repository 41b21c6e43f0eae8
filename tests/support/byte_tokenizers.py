"""The two kinds of tokenizers whose tokens may be parts of characters, with a token for every byte."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

KINDS = ("level", "fallback")
"""Byte-level (GPT-2, Llama 3, Qwen), and with byte fallback (Llama 2, Mistral, Gemma)."""
WORD = 256
"""A token of several characters that begins with a space."""
SPECIAL = 257
"""A token that is special."""


@cache
def make_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer whose first 256 tokens are bytes, by their value."""
    if kind == "level":
        tokenizer = Tokenizer(models.BPE(vocab={**_level_alphabet(), "Ġword": WORD}, merges=[]))
        tokenizer.decoder = decoders.ByteLevel()
    else:
        vocabulary = {_fallback_token(byte): byte for byte in range(256)} | {"▁word": WORD}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def _level_alphabet() -> dict[str, int]:
    """Each byte's character by the rule of GPT-2: its own if that is printed, or the next beyond 255."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    alphabet = {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert alphabet.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


def _fallback_token(byte: int) -> str:
    """What is printed of ASCII has tokens that are characters; bytes stand for all else."""
    if byte == ord(" "):
        return "▁"
    return chr(byte) if 0x20 < byte < 0x7F else f"<0x{byte:02X}>"
