from __future__ import annotations

import gc
import json
from typing import Any

import msgspec
import pytest
from wavepp_worker.dynamo.body_json import LONG_PROMPT_BYTES, decoded, decoded_but_ids, ids_unread
from wavepp_worker.errors import InvalidRequest

LONG = [100_000 + number for number in range(LONG_PROMPT_BYTES // 6)]


def test_the_ids_of_a_long_prompt_alone_are_not_read() -> None:
    body = {"model": "m", "prompt": LONG, "nvext": {"annotations": [1.5, None]}, "stop": ["é"], "n": 2}
    data = json.dumps(body).encode()
    read = decoded_but_ids(data)
    assert ids_unread(read)
    assert not ids_unread(body)
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


def test_beside_what_only_json_itself_reads_ids_are_read_as_well() -> None:
    """As the frontend does: control characters in strings, and numbers that are none."""
    for value, read in (('"a\nb"', "a\nb"), ("1e999", float("inf"))):
        body = f'{{"user": {value}, "prompt": {LONG}}}'.encode()
        assert decoded_but_ids(body) == decoded(body) == {"user": read, "prompt": LONG}


def test_garbage_is_not_looked_for_while_a_body_is_read() -> None:
    """It took five times as long."""
    body = json.dumps({"user": [[] for _ in range(20_000)], "prompt": LONG}).encode()
    collected: list[str] = []

    def note(phase: str, _: object) -> None:
        collected.append(phase)  # "start" and "stop"

    gc.collect()
    gc.callbacks.append(note)
    try:
        read = [read(body) for read in (decoded, decoded_but_ids)]
        meanwhile = [*collected]
    finally:
        gc.callbacks.remove(note)
    # Once each, when it is over: every 700 lists would make 28 times.
    assert len(meanwhile) <= 2 * 2
    assert gc.isenabled()
    assert [len(each["user"]) for each in read] == [20_000] * 2


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
