"""Garbage collection that does not stop a pipeline."""

from __future__ import annotations

import gc

MIDDLE_COLLECTIONS_BEFORE_FULL = 1 << 30
"""Middle collections before a full one: more than a process lives for."""


def collect_young_only() -> None:
    """From now on, only collect objects that were made lately; what is alive now is not looked at any more.

    A full collection looks at every block of the cache, and finds nothing: reference counts free what the runtime
    lets go of. It takes 55 ms where a rank has 90,000 blocks, starts at any allocation, and a pipeline waits for its
    slowest rank.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MIDDLE_COLLECTIONS_BEFORE_FULL)
