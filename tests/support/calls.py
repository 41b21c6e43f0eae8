"""How much Python does, where a time would depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")


def calls_during(act: Callable[[], Result]) -> tuple[int, Result]:
    """How many functions, those written in C included, ``act`` calls; and what it returns.

    What a comprehension or a function written in C does by itself, however often, is one call.
    """
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        result = act()
    finally:
        sys.setprofile(before)
    return count, result
