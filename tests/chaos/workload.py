"""What clients ask, and when: a function of a seed and of the prompts whose answers are known. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import msgspec

VOCABULARY = 256
"""Token ids of prompts are below it."""


class Case(msgspec.Struct, frozen=True):
    """A prompt and its greedy continuation, a character a token."""

    prompt: list[int]
    text: str


class Manner(str, Enum):
    """How a request is made."""

    WHOLE = "whole"
    STREAM = "stream"
    ABORTED = "aborted"
    INVALID = "invalid"


class Ask(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        number: counts from 0.
        at: seconds after the load began.
        manner: how it is made.
        body: the JSON body, without the model's name.
        text: the right answer; empty for an invalid request.
        patience: seconds after which an aborted request's client leaves.
    """

    number: int
    at: float
    manner: Manner
    body: dict[str, Any]
    text: str
    patience: float = 0.0


INVALID: tuple[dict[str, Any], ...] = (
    {"prompt": [1] * 9000},
    {"prompt": []},
    {"prompt": ""},
    {"prompt": [1, 2, 100_000]},
    {"prompt": [1], "no_such_parameter": 1},
    {"prompt": [1], "temperature": -1},
    {"prompt": [1], "n": 129},
    {"prompt": [1], "suffix": "x"},
    {"prompt": {"a": 1}},
    {"prompt": [1], "max_tokens": "many"},
)
"""Each has to be refused with 4xx."""


def draw_prompts(seed: int, count: int, longest: int) -> list[list[int]]:
    """Prompts: half short, some long, the rest over a few shared prefixes of any length."""
    draw = random.Random(seed)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randint(least, max(least, most)))]

    prefixes = [tokens(longest // 8, longest // 2) for _ in range(4)]
    prompts = []
    for _ in range(count):
        manner = draw.random()
        if manner < 0.4:
            prompts.append(tokens(1, 64))
        elif manner < 0.55:
            prompts.append(tokens(longest // 3, longest))
        else:
            prefix = draw.choice(prefixes)
            prompts.append(prefix[: draw.randint(1, len(prefix))] + tokens(1, longest // 4))
    return prompts


def draw_asks(seed: int, rate: float, cases: Sequence[Case], salted: float = 0.0) -> Iterator[Ask]:
    """Requests without end, ``rate`` of them a second on average, at random instants.

    Args:
        salted: this share of the valid ones have a salt of their own: to every cache they are prompts that nobody
            has asked before, and their answers are known all the same.
    """
    draw, draw_salt = random.Random(seed), random.Random(f"salts of {seed}")
    at, number = 0.0, 0
    while True:
        at += draw.expovariate(rate)
        chance = draw.random()
        if chance < 0.08:
            body = {"max_tokens": 2, **draw.choice(INVALID)}
            yield Ask(number, at, Manner.INVALID, body, "")
        else:
            case = draw.choice(cases)
            count = draw.randint(1, len(case.text))
            body = {"prompt": case.prompt, "max_tokens": count, "temperature": 0}
            if draw_salt.random() < salted:
                body["nvext"] = {"cache_salt": f"{seed}-{number}"}
            if chance < 0.2:
                patience = draw.choice((0.01, 0.05, 0.2, 0.6))
                body["stream"] = draw.random() < 0.5
                yield Ask(number, at, Manner.ABORTED, body, case.text[:count], patience)
            elif chance < 0.55:
                yield Ask(number, at, Manner.STREAM, {**body, "stream": True}, case.text[:count])
            else:
                yield Ask(number, at, Manner.WHOLE, body, case.text[:count])
        number += 1
