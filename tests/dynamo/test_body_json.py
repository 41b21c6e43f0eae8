from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from wavepp_worker.dynamo.body_json import LONG_PROMPT_BYTES, decoded, decoded_but_ids
from wavepp_worker.errors import InvalidRequest

LONG = [100_000 + number for number in range(LONG_PROMPT_BYTES // 7)]


def test_the_ids_of_a_long_prompt_alone_are_not_read() -> None:
    body = {"model": "m", "prompt": LONG, "nvext": {"annotations": [1.5, None]}, "stop": ["é"], "n": 2}
    data = json.dumps(body).encode()
    read = decoded_but_ids(data)
    assert isinstance(read["prompt"], msgspec.Raw)
    assert msgspec.json.decode(read["prompt"]) == LONG
    assert {**read, "prompt": LONG} == body == decoded(data)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [1, 2, 3], "user": "x" * 2 * LONG_PROMPT_BYTES},
        {"prompt": [LONG, LONG]},
        {"prompt": [str(each) for each in LONG]},
        {"prompt": "1" * 2 * LONG_PROMPT_BYTES},
        {"prompt": [-each for each in LONG]},
        {"messages": [{"role": "user", "content": "x" * 2 * LONG_PROMPT_BYTES}]},
        {"prompt": None, "input": LONG},
        [LONG],
        LONG,
    ],
    ids=str.split("short several texts text negative chat none nested list"),
)
def test_all_else_is_read_as_a_whole(body: Any) -> None:
    assert decoded_but_ids(json.dumps(body).encode()) == body


def test_what_only_json_itself_reads_is_read_by_it() -> None:
    """As the frontend does: control characters in strings, and numbers beyond 64 bits."""
    ids = ",".join(map(str, LONG))
    assert decoded_but_ids(f'{{"user": "a\nb", "prompt": [{ids}]}}'.encode()) == {
        "user": "a\nb",
        "prompt": LONG,
    }
    assert decoded_but_ids(f'{{"seed": {2**70}, "prompt": [{ids}]}}'.encode())["seed"] == 2**70


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        ("", "is not JSON"),
        (', "user": ' + "[" * 100_000, "nests too deeply"),
        (', "user": ' + "[" * 100_000 + "]" * 100_000 + "}", "nests too deeply"),
    ],
    ids=["cut off", "open for ever", "deep"],
)
def test_what_is_no_json_is_refused_also_behind_a_long_prompt(rest: str, sentence: str) -> None:
    body = f'{{"prompt": {LONG}{rest}'.encode()
    for read in (decoded, decoded_but_ids):
        with pytest.raises(InvalidRequest, match=sentence):
            read(body)
