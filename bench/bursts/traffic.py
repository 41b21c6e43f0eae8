"""What is asked at once: cold bursts behind common prefixes, trees, and agents whose turns extend each other.

A cell is a number of *sessions* that begin at the same moment; each asks its next prompt when the last one is answered.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Protocol

from bench.common.prompts import Prompts

SUFFIX = 512
"""Tokens of a burst's request behind its prefix."""
K = 1024

Sessions = list[list[bytes]]
"""The prompts (packed token ids) of each session, in the order it asks them."""


class BurstCell(Protocol):
    """What is measured at once."""

    @property
    def name(self) -> str: ...

    @property
    def sessions(self) -> int:
        """How many requests are under way at the same time."""
        ...

    def draw(self, new: Prompts) -> Sessions: ...


@dataclass(frozen=True)
class Burst:
    """Requests in ``groups``, in random order: those of a group share a prefix. Every session asks ``each``."""

    groups: int
    sessions: int
    prefix: int
    suffix: int = SUFFIX
    each: int = 1

    @property
    def name(self) -> str:
        count = (
            f"{self.sessions}" if self.each == 1 else f"{self.each * self.sessions}, {self.sessions} at once,"
        )
        return f"burst {count} of {self.groups} x {size(self.prefix)} + {size(self.suffix)}"

    def draw(self, new: Prompts) -> Sessions:
        prefixes = [new.tokens(self.prefix) for _ in range(self.groups)]
        count = self.each * self.sessions
        prompts = [prefixes[at % self.groups] + new.tokens(self.suffix) for at in range(count)]
        random.Random(count).shuffle(prompts)
        return [prompts[at :: self.sessions] for at in range(self.sessions)]


@dataclass(frozen=True)
class Tree:
    """A system prompt, behind it ``documents``, and ``questions`` to each; all come at once and in random order."""

    system: int
    documents: int
    document: int
    questions: int
    question: int = 256

    @property
    def name(self) -> str:
        return (
            f"tree {size(self.system)}, {self.documents} x {size(self.document)}, {self.questions} questions"
        )

    @property
    def sessions(self) -> int:
        return self.documents * self.questions

    def draw(self, new: Prompts) -> Sessions:
        system = new.tokens(self.system)
        documents = [system + new.tokens(self.document) for _ in range(self.documents)]
        prompts = [
            [document + new.tokens(self.question)] for document in documents for _ in range(self.questions)
        ]
        random.Random(self.sessions).shuffle(prompts)
        return prompts


@dataclass(frozen=True)
class Agents:
    """``sessions`` agents with one system prompt; each turn is the one before it and ``turn`` tokens more."""

    sessions: int
    turns: int = 8
    system: int = 8 * K
    turn: int = 1 * K

    @property
    def name(self) -> str:
        return f"agents {self.sessions}, {size(self.system)} + {self.turns} x {size(self.turn)}"

    def draw(self, new: Prompts) -> Sessions:
        system = new.tokens(self.system)
        sessions = []
        for _ in range(self.sessions):
            prompts = [system + new.tokens(self.turn)]
            while len(prompts) < self.turns:
                prompts.append(prompts[-1] + new.tokens(self.turn))
            sessions.append(prompts)
        return sessions


@dataclass(frozen=True)
class Unshared:
    """``sessions`` requests that have nothing in common."""

    sessions: int
    tokens: int

    @property
    def name(self) -> str:
        return f"unshared {self.sessions} x {size(self.tokens)}"

    def draw(self, new: Prompts) -> Sessions:
        return [[new.tokens(self.tokens)] for _ in range(self.sessions)]


def sessions_of(cell: BurstCell, vocabulary: int) -> Sessions:
    """A cell's prompts, the same in every process."""
    return cell.draw(Prompts(zlib.crc32(cell.name.encode()), vocabulary))


def size(tokens: int) -> str:
    """A number of tokens for a name."""
    return f"{tokens // K}K" if tokens % K == 0 else str(tokens)


VIRTUAL_CELLS: tuple[BurstCell, ...] = (
    *(
        Burst(groups, requests, prefix * K)
        for groups in (1, 2, 8)
        for requests in (8, 16, 32, 128)
        for prefix in (1, 4, 16, 64)
        if requests > groups
    ),
    Tree(2 * K, 4, 8 * K, 4),
    Tree(2 * K, 8, 8 * K, 16),
    Tree(8 * K, 4, 32 * K, 8),
    *(Agents(sessions) for sessions in (1, 4, 16, 32)),
    Unshared(1, 1 * K),
    Unshared(1, 64 * K),
    Unshared(32, 4 * K),
)
"""On virtual devices."""

REAL_CELLS: tuple[BurstCell, ...] = (
    *(
        Burst(groups, requests, prefix * K, 128)
        for groups in (1, 2)
        for requests in (8, 32)
        for prefix in (1, 4)
    ),
    Burst(8, 32, 1 * K, 128),
    Burst(2, 16, 4 * K, 128, each=2),
    Tree(512, 4, 1 * K, 4, 64),
    Agents(4, 4, 1 * K, 256),
    Agents(16, 4, 1 * K, 256),
    Unshared(1, 4 * K),
    Unshared(16, 1 * K),
)
"""On real compute: what two cores do in a minute."""
