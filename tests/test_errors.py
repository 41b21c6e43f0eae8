from __future__ import annotations

from wavepp_worker.errors import InvalidRequest, error_text


def test_our_own_sentences_are_quoted_as_they_are_and_others_with_their_type() -> None:
    assert error_text(InvalidRequest("the prompt is empty")) == "the prompt is empty"
    assert error_text(KeyError("room")) == "KeyError: 'room'"
