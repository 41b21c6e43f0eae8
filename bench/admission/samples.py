"""Seconds that calls took, by the name of the step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Samples = defaultdict[str, list[float]]

INDEX, WALKS = "hint index", "two walks"
"""The two ways to find what is reusable, in the names of steps."""

T = TypeVar("T")
P = ParamSpec("P")


def timed(samples: list[float], call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What ``call`` returns; its seconds go to ``samples``."""
    begun = time.perf_counter()
    result = call(*arguments, **named)
    samples.append(time.perf_counter() - begun)
    return result
