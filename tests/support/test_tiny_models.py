from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from tests.support import tiny_models


def test_tiny_tokenizer_puts_special_tokens_last(tiny_llama: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    text = "the tokens of a wave, naïve 東京"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < tiny_models.NORMAL == min(tokenizer.all_special_ids)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>assistant\n")
