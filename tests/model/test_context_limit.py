from __future__ import annotations

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.context_limit import within_context


def test_it_is_what_is_asked_for_else_the_models_context() -> None:
    assert within_context(None, 1024) == 1024
    assert within_context(100, 1024) == 100
    assert within_context(1024, 1024) == 1024


def test_more_than_the_models_context_is_refused() -> None:
    sentence = "^max_model_len is 1025, but the model's context length is 1024; lower max_model_len$"
    with pytest.raises(ConfigError, match=sentence):
        within_context(1025, 1024)
