"""Nothing that a rank keeps is looked at by the garbage collector, and nothing it lets go of needs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.rank.garbage_collection import collect_young_only

from tests.support.cache_bench import CacheBench


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.enable()
    gc.unfreeze()


def test_no_full_collection_starts_however_much_is_kept() -> None:
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        generations.append(info["generation"])

    collect_young_only()
    gc.callbacks.append(note)
    try:
        kept = [[] for _ in range(200_000)]  # type: ignore[var-annotated]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 200_000
    assert set(generations) == {0, 1}, "200,000 new objects are worth several full collections by default"


def test_evicted_blocks_are_freed_without_the_collector() -> None:
    bench = CacheBench(
        WindowSpec("attention", "full", 8, 2, 2), WindowSpec("recurrent", "recurrent", 4, interval=4)
    )
    gc.collect()
    before = sum(type(each) is Node for each in gc.get_objects())
    gc.disable()
    for first in range(200):
        bench.run(f"r{first}", [first] * 5 + [first % 3] * 2)
    alive = sum(type(each) is Node for each in gc.get_objects()) - before
    bench.cache.audit()
    assert alive <= 8 + 2 + 2 + 4
