"""What a setting is called where it was given."""

from __future__ import annotations

import pytest
from wavepp_worker.setting_names import did_you_mean, keys_as_flags

KEYS = ("pp", "kv_tokens", "host_kv_tokens", "device", "order", "ownership", "model", "max_model_len")


@pytest.mark.parametrize(
    ("word", "suggested"),
    [
        ("ppp", " (did you mean pp?)"),
        ("kv-token", " (did you mean kv_tokens?)"),
        ("KV_Tokens", " (did you mean kv_tokens?)"),
        ("frobnicate", ""),
    ],
)
def test_what_was_probably_meant(word: str, suggested: str) -> None:
    assert did_you_mean(word, KEYS) == suggested


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        (
            "kv_tokens gives rank 0 15 tokens; raise kv_tokens or set max_model_len",
            "--kv-tokens gives rank 0 15 tokens; raise --kv-tokens or set --max-model-len",
        ),
        ("host_kv_tokens is -1", "--host-kv-tokens is -1"),
        ("device: no device of this order", "--device: no device of this order"),
        ("order=prefix needs ownership=lease", "--order=prefix needs --ownership=lease"),
        ("model: /my/model/pp has a model", "--model: /my/model/pp has a model"),
        ("the model in /kv_tokens and kv_tokens.json", "the model in /kv_tokens and kv_tokens.json"),
        ("--kv-tokens: x; Worker.kv_tokens", "--kv-tokens: x; Worker.kv_tokens"),
    ],
)
def test_keys_in_a_sentence_become_flags_and_words_stay_words(message: str, flags: str) -> None:
    assert keys_as_flags(message, KEYS) == flags
