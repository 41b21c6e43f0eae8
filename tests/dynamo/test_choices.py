from __future__ import annotations

import json
from typing import Any

import pytest
from wavepp_worker.dynamo.choices import Choices, choices_wanted, one_choice


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 1),
        ({"n": None}, 1),
        ({"n": 1}, 1),
        ({"n": 0}, 1),
        ({"n": True}, 1),
        ({"n": "2"}, 1),
        ([], 1),
        ({"n": 3}, 3),
    ],
)
def test_how_many_choices_are_asked_for(body: Any, count: int) -> None:
    assert choices_wanted(body) == count


def test_each_choice_is_a_request_with_a_seed_of_its_own() -> None:
    body = {"prompt": "x", "n": 3, "best_of": 3, "stream": True}
    assert json.loads(one_choice(body, 2)) == {"prompt": "x", "stream": True}
    seeds = [
        json.loads(one_choice({**body, "seed": seed}, number))["seed"]
        for seed in (7, 2**63 - 2)
        for number in range(3)
    ]
    assert seeds == [7, 8, 9, 2**63 - 2, 2**63 - 1, 2**63 - 4]


def piece(identity: str, *choices: int, **fields: Any) -> dict[str, Any]:
    return {"id": identity, "choices": [{"index": index, "text": identity} for index in choices], **fields}


def test_choices_are_numbered_by_prompt_and_then_by_choice() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": None}
    answers = [
        piece(name, 0, 1, usage={**usage, "completion_tokens": count}) for name, count in (("a", 3), ("b", 4))
    ]
    whole = Choices(2).merged(answers)
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]
    assert whole["id"] == "a"
    assert whole["usage"] == {**usage, "completion_tokens": 7, "total_tokens": 12}


def test_pieces_of_a_stream_become_pieces_of_one() -> None:
    choices = Choices(3)
    assert choices.piece(piece("b", 0, usage=None), 1) == {
        **{"id": "b", "usage": None},
        "choices": [{"index": 1, "text": "b"}],
    }
    assert choices.usage() is None
    assert choices.piece(piece("c", 0), 2)["id"] == "b"
    for number in range(3):
        choices.piece({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": number}}, number)
    assert choices.usage() == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
