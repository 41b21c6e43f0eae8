from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.intake.names import QueueName, token, token_of


@given(st.text(), st.text())
def test_every_text_has_a_token_of_its_own_that_subjects_can_have(one: str, other: str) -> None:
    assert re.fullmatch(r"~?[A-Za-z0-9_-]{1,100}", token(one))
    assert (token(one) == token(other)) == (one == other)
    # What stands for a text is no text's own token.
    assert token(token(one)) == token(one) or token(one).startswith("~")


def test_readable_texts_stay_readable() -> None:
    assert token("report-17_b") == "report-17_b"
    assert token("x" * 100) == "x" * 100
    assert token("x" * 101).startswith("~")


def test_names_of_different_queues_differ() -> None:
    queues = [QueueName("a-b", "c"), QueueName("a", "b-c"), QueueName("a:b", "c"), QueueName("a", "b:c")]
    for names in ([each.root for each in queues], [each.jobs_stream for each in queues]):
        assert len(set(names)) == 4
    assert QueueName("dynamo", "org/model.v1").root.count(".") == 2


@pytest.mark.parametrize("replica", [None, "d334ebe5063da731", "any", "to-any"])
def test_what_is_addressed_is_found_again(replica: str | None) -> None:
    name = QueueName("dynamo", "m")
    assert token_of(name.job("j", replica)) == "j"
    assert name.addressee(name.consumer(replica)) == replica
