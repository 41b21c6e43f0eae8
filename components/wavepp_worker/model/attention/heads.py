"""How many heads attention has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heads:
    """The heads of one layer's attention.

    Attributes:
        queries: heads of queries.
        keys: heads of keys, and of values.
        dim: of each head.
    """

    queries: int
    keys: int
    dim: int
