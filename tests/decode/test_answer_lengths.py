from __future__ import annotations

from wavepp_worker.decode.answer_lengths import FEW, LATEST, UNKNOWN, AnswerLengths


def test_as_long_as_few_answers_have_ended_they_are_expected_to_be_long() -> None:
    lengths = AnswerLengths()
    assert lengths.expected() == UNKNOWN
    for _ in range(FEW - 1):
        lengths.ended(3)
    assert lengths.expected() == UNKNOWN
    lengths.ended(3)
    assert lengths.expected() == 3


def test_nine_of_ten_of_the_latest_are_no_longer() -> None:
    lengths = AnswerLengths()
    for tokens in range(1, 101):
        lengths.ended(tokens)
    assert lengths.expected() == 90
    for _ in range(LATEST):
        lengths.ended(7)
    assert lengths.expected() == 7


def test_an_answer_that_was_cut_is_as_long_as_others_at_least() -> None:
    lengths = AnswerLengths()
    for _ in range(LATEST):
        lengths.ended(100)
    for _ in range(LATEST):
        lengths.ended(3, cut=True)
    assert lengths.expected() == 100
    for _ in range(LATEST):
        lengths.ended(300, cut=True)
    assert lengths.expected() == 300


def test_an_answer_has_a_token() -> None:
    lengths = AnswerLengths()
    for _ in range(FEW):
        lengths.ended(0)
    assert lengths.expected() == 1
