"""The traffic of each cell. Needs numpy alone, as both sides' Pythons read it.

A cell is written ``kind:number:…``:

* ``cold:LENGTH:CLIENTS:REQUESTS``: prompts with nothing in common;
* ``mixed:LONGEST:CLIENTS:REQUESTS``: the same of lengths that differ, down to a 64th of the longest;
* ``reuse:LENGTH:CLIENTS:REQUESTS[:GROUPS]``: 90 % of each prompt is one of so many prefixes (1), known before;
* ``suffix:PREFIX:SUFFIX:CLIENTS:REQUESTS:GROUPS``: one of the prefixes, known before, and tokens of its own;
* ``burst:PREFIX:SUFFIX:CLIENTS:REQUESTS:GROUPS``: the same with prefixes that nobody has asked for yet.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

GRAMMAR = {"cold": (3,), "mixed": (3,), "reuse": (3, 4), "suffix": (5,), "burst": (5,)}


@dataclass(frozen=True)
class Traffic:
    """What one cell asks: token ids.

    Attributes:
        clients: requests at a time.
        known: prompts that are asked before, one by one and untimed.
        prompts: in order.
    """

    clients: int
    known: list[list[int]]
    prompts: list[list[int]]

    @property
    def longest(self) -> int:
        return max(len(prompt) for prompt in (*self.known, *self.prompts))


def traffic_of(cell: str, seed: int, vocabulary: int) -> Traffic:
    """Draw a cell's prompts; the same on every machine.

    Raises:
        ValueError: it is not written as a cell is.
    """
    kind, *words = cell.split(":")
    if len(words) not in GRAMMAR.get(kind, ()) or not all(word.isdigit() and int(word) for word in words):
        raise ValueError(f"{cell} is no cell; give one like cold:2048:8:64 or burst:4096:128:16:32:2")
    numbers = [int(word) for word in words]
    draw = np.random.default_rng([seed, zlib.crc32(cell.encode())])

    def new(length: int) -> list[int]:
        tokens: list[int] = draw.integers(0, vocabulary, length).tolist()
        return tokens

    if kind == "cold":
        length, clients, requests = numbers
        return Traffic(clients, [], [new(length) for _ in range(requests)])
    if kind == "mixed":
        length, clients, requests = numbers
        lengths = [max(1, int(length / 64 ** draw.random())) for _ in range(requests)]
        return Traffic(clients, [], [new(each) for each in lengths])
    if kind == "reuse":
        length, clients, requests, groups = (*numbers, 1)[:4]
        shared, own = length * 9 // 10, length - length * 9 // 10
    else:
        shared, own, clients, requests, groups = numbers
    prefixes = [new(shared) for _ in range(groups)]
    prompts = [prefixes[draw.integers(groups)] + new(own) for _ in range(requests)]
    return Traffic(clients, [] if kind == "burst" else prefixes, prompts)
