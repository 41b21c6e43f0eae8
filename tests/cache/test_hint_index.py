"""The hint index against a Counter, and under threads."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.block_keys import KEY_BYTES, BlockKeys
from wavepp_worker.cache.hint_index import HintIndex
from wavepp_worker.errors import AuditError

from tests.support.cache_bench import key

few_keys = st.integers(0, 40).map(lambda number: key(number * 0x9E3779B97F4A7C15))
updates = st.lists(st.tuples(st.booleans(), st.integers(0, 2), few_keys), max_size=200)


def index_of(keys: list[bytes], window: int = 0) -> HintIndex:
    index = HintIndex(window + 1)
    for each in keys:
        index.add(window, each)
    return index


@given(updates)
def test_counts_are_those_of_a_counter(changes: list[tuple[bool, int, bytes]]) -> None:
    index, model = HintIndex(3), Counter[tuple[int, bytes]]()
    for is_add, window, name in changes:
        if is_add:
            index.add(window, name)
            model[window, name] += 1
        elif model[window, name]:
            index.remove(window, name)
            model[window, name] -= 1
        else:
            with pytest.raises(ValueError, match=f"{name.hex()} of window {window}"):
                index.remove(window, name)
        index.check()
        assert index.has(window, name) == bool(model[window, name])
    for window in range(3):
        assert index.counts(window) == {name: n for (of, name), n in model.items() if of == window and n}


@given(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70))
def test_prefix_finds_the_end_of_a_prefix(total: int, present: int, limit: int) -> None:
    keys = [key(random.Random(total).getrandbits(64) ^ at) for at in range(total)]
    limit, present = min(limit, total), min(present, total)
    assert index_of(keys[:present]).prefix(0, keys, limit) == min(present, limit)


@given(st.lists(st.booleans(), max_size=70))
def test_prefix_of_holes_is_a_place_where_presence_ends(present: list[bool]) -> None:
    keys = [key(at) for at in range(len(present))]
    index = index_of([each for each, there in zip(keys, present, strict=True) if there])
    end = index.prefix(0, keys, len(keys))
    assert end == 0 or present[end - 1]
    assert end == len(keys) or not present[end]


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 70))
def test_latest_is_the_last_present_key(present: list[bool], below: int) -> None:
    keys, below = [key(at) for at in range(len(present))], min(below, len(present))
    index = index_of([each for each, there in zip(keys, present, strict=True) if there], window=2)
    assert index.latest(2, keys, below) == max((n for n in range(1, below + 1) if present[n - 1]), default=0)


def test_windows_are_apart_and_unknown_ones_refused() -> None:
    index = HintIndex(2)
    index.add(0, key(7))
    assert not index.has(1, key(7))
    with pytest.raises(IndexError):
        index.add(2, key(7))


@pytest.mark.parametrize(("number", "count"), [(3, 1), (0, 0)])
def test_check_finds_an_entry_in_the_wrong_shard_and_one_that_counts_nothing(number: int, count: int) -> None:
    index = HintIndex()
    index._windows[0][0].counts[key(number)] = count
    with pytest.raises(AuditError, match="counts"):
        index.check()


class YieldingDict(dict[bytes, int]):
    """Lets other threads run between the read and the write of an update."""

    def get(self, key: bytes, default: int = 0) -> int:
        value = super().get(key, default)
        time.sleep(0)
        return value


def test_threads_that_update_the_same_keys_lose_no_count() -> None:
    index, keys = HintIndex(), [key(number) for number in range(64)]
    for shard in index._windows[0]:
        shard.counts = YieldingDict()

    def update() -> None:
        for _ in range(20):
            for each in keys:
                index.add(0, each)
            for each in keys[1:]:
                index.remove(0, each)

    threads = [threading.Thread(target=update) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        index.check()
        assert index.counts(0).get(key(0), 0) <= 80
    assert index.counts(0) == {key(0): 80}


def test_a_prefix_that_stays_is_found_under_churn_and_fast() -> None:
    """S21: whatever comes and goes elsewhere, and in microseconds (the bench has the exact figure)."""
    draw = random.Random(0)
    keys = BlockKeys(draw.randbytes(KEY_BYTES * 6250))
    index = index_of(keys[:5000])
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for number in range(100):
                index.add(0, key(number))
            for number in range(100):
                index.remove(0, key(number))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        seconds = []
        for _ in range(500):
            begun = time.perf_counter()
            assert index.prefix(0, keys, 6250) == 5000
            seconds.append(time.perf_counter() - begun)
    finally:
        stop.set()
        thread.join()
    assert statistics.median(seconds) < 100e-6
