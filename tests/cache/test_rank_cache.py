"""The contract of a rank's cache: what it refuses, what it is without windows, and that two threads share it."""

from __future__ import annotations

import random
import threading

import pytest
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import ConfigError

from tests.support.cache_bench import BLOCK, CacheBench, attention, keys_of, prompt, recurrent


def test_a_window_that_cannot_work_is_refused_with_what_to_change() -> None:
    with pytest.raises(ConfigError, match="multiple of the block size 2"):
        CacheBench(recurrent(4, interval=3))
    with pytest.raises(ConfigError, match="span is at least 1"):
        CacheBench(WindowSpec("s", "sliding", 4))
    with pytest.raises(ConfigError, match="needs at least 1"):
        CacheBench(attention(0))
    with pytest.raises(ConfigError, match="give at least 1"):
        RankCache([], 0)


def test_a_rank_that_keeps_nothing_can_resume_anywhere_and_has_room() -> None:
    """S16: a stage without any layer that caches."""
    cache = RankCache([], 4)
    assert cache.hint([1, 2, 3], 14) == cache.match([1, 2, 3], 14) == 12
    prepared = cache.prepare("r", [1, 2, 3], 14, 8)
    assert prepared is not None
    assert (prepared.endpoint, prepared.committed) == (8, True)
    assert cache.materialise("r").tables == ()
    cache.publish("r", 14)
    assert cache.take_changes() == ([], [], [])
    assert cache.use().capacity == 0
    cache.release("r")
    cache.audit()


def test_what_a_prompt_finds_is_present_and_of_that_what_requests_hold() -> None:
    cache = RankCache([attention(6)], BLOCK)
    assert cache.free_tokens() == 6 * BLOCK
    long = prompt(0, 5 * BLOCK)
    cache.prepare("a", keys_of(long), 5 * BLOCK, 0)
    assert cache.free_tokens() == BLOCK, "what is reserved is not free"
    cache.materialise("a")
    cache.publish("a", 5 * BLOCK)
    assert cache.standing(keys_of(long), 5 * BLOCK) == (4 * BLOCK, 4 * BLOCK), "the last token is computed"
    cache.release("a")
    assert cache.standing(keys_of(long), 5 * BLOCK) == (4 * BLOCK, 0)
    assert (cache.free_tokens(), cache.unreserved_tokens()) == (BLOCK, 6 * BLOCK)
    cache.lease("b", keys_of(long), 5 * BLOCK, 2 * BLOCK)
    assert cache.standing(keys_of(long), 5 * BLOCK) == (4 * BLOCK, 2 * BLOCK)
    assert RankCache([], BLOCK).standing(keys_of(long), 5 * BLOCK) == (0, 0)


def test_calls_out_of_order_say_what_the_request_holds() -> None:
    bench = CacheBench(attention(4))
    with pytest.raises(ValueError, match="request a holds nothing; this needs lease"):
        bench.cache.reserve("a")
    bench.lease("a", prompt(1, 4))
    with pytest.raises(ValueError, match="request a holds lease already"):
        bench.lease("a", prompt(1, 4))
    with pytest.raises(ValueError, match="this needs escrow or committed"):
        bench.cache.materialise("a")
    with pytest.raises(ValueError, match="this needs sequence"):
        bench.cache.publish("a", 2)


def test_two_threads_share_the_cache() -> None:
    """One thread prepares and cancels, as admission does; one materialises, publishes and releases."""
    cache = RankCache([attention(64, host=16), WindowSpec("r", "recurrent", 12, interval=8)], BLOCK)
    committed: list[str] = []
    done = threading.Event()
    failures: list[BaseException] = []

    def admit() -> None:
        chance = random.Random(3)
        for number in range(1500):
            tokens = [*prompt(chance.randrange(4), chance.randrange(1, 40)), number]
            keys, name = keys_of(tokens), f"r{number}"
            prepared = cache.prepare(name, keys, len(tokens), cache.hint(keys, len(tokens)), headroom=4)
            if prepared is None:
                continue
            if not prepared.committed:
                prepared = cache.commit(name, prepared.endpoint)
            if prepared.committed and chance.random() < 0.7:
                lengths[name] = len(tokens)
                committed.append(name)
            else:
                cache.release(name)

    def execute() -> None:
        chance = random.Random(4)
        while not done.is_set() or committed:
            if committed:
                name = committed.pop(0)
                cache.materialise(name)
                for computed in range(0, lengths[name], 7):
                    cache.publish(name, computed)
                if chance.random() < 0.1:
                    cache.check()
                cache.publish(name, lengths[name])
                cache.release(name)

    def guarded(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    lengths: dict[str, int] = {}
    threads = [threading.Thread(target=guarded, args=(work,)) for work in (admit, execute)]
    for thread in threads:
        thread.start()
    threads[0].join(60)
    done.set()
    threads[1].join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    cache.audit()
