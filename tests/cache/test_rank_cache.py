"""The rank's cache against a naive model (promises 1 and 2, as far as lockstep admission uses them)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wavepp_worker.cache.hashing import block_hashes, cache_seed
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.errors import AuditError

BLOCK = 2


def pack(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def keys_of(tokens: list[int]) -> list[int]:
    return block_hashes(pack(tokens), BLOCK, cache_seed("model", "", ""))


class CacheMachine(RuleBasedStateMachine):
    """Random requests over a tiny alphabet, so that prefixes collide and the pool is always under pressure.

    The naive model remembers which prefixes *may* be reusable (published and not reported as removed) and
    what each request wrote into its blocks; blocks are plain cells of a list.
    """

    @initialize(capacity=st.integers(4, 12))
    def start(self, capacity: int) -> None:
        self.cache = RankCache(capacity, BLOCK)
        self.capacity = capacity
        self.memory: list[tuple[int, ...] | None] = [None] * capacity
        self.live: dict[str, tuple[list[int], list[int], int]] = {}
        self.reported: dict[int, int | None] = {}
        self.names = 0

    def _wanted(self, prompts: list[list[int]]) -> list[tuple[str, list[int], int, int]]:
        wanted = []
        for prompt in prompts:
            keys = keys_of(prompt)
            self.names += 1
            reuse = self.cache.match(keys, len(prompt))
            wanted.append((f"r{self.names}", keys, reuse, len(prompt)))
        return wanted

    @rule(prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=10), min_size=1, max_size=3))
    def admit(self, prompts: list[list[int]]) -> None:
        wanted = self._wanted(prompts)
        before = self.cache.use()
        tables = self.cache.admit(wanted)
        if not tables:
            need = -(-wanted[0][3] // BLOCK)
            assert need > before.free, "the head of the queue was refused although free blocks alone suffice"
        for table, prompt, (name, keys, reuse, _) in zip(tables, prompts, wanted, strict=False):
            assert len(table) == -(-len(prompt) // BLOCK)
            assert len(set(table)) == len(table)
            for index in range(reuse):
                assert self.memory[table[index]] == tuple(prompt[: (index + 1) * BLOCK]), (
                    "reused a wrong block"
                )
            for block in table[reuse:]:
                for other, (_, other_table, _) in self.live.items():
                    assert block not in other_table, f"block {block} was taken from live request {other}"
            self.live[name] = (prompt, table, reuse * BLOCK)
            assert len(keys) == len(prompt) // BLOCK
        self._take_changes()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        prompt, table, position = self.live[name]
        end = min(len(prompt), position + data.draw(st.integers(1, 5)))
        for token in range(position, end):
            index = token // BLOCK
            self.memory[table[index]] = tuple(prompt[: min(end, (index + 1) * BLOCK)])
        self.live[name] = (prompt, table, end)
        self.cache.publish(name, end)
        self._take_changes()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[name]
        assert self.cache.release(name)
        assert not self.cache.release(name)
        self._take_changes()

    def _take_changes(self) -> None:
        stored, removed = self.cache.take_changes()
        for key in removed:
            assert key not in self.reported.values(), "a block was removed before its child"
            del self.reported[key]
        for block in stored:
            assert block.key not in self.reported
            assert block.parent is None or block.parent in self.reported, (
                "a block was stored before its parent"
            )
            self.reported[block.key] = block.parent

    @invariant()
    def books_balance(self) -> None:
        self.cache.check()
        use = self.cache.use()
        assert use.free + use.reusable + use.held == self.capacity

    @invariant()
    def reports_equal_the_tree(self) -> None:
        for prompt, _, _ in self.live.values():
            keys = keys_of(prompt)
            expected = 0
            while expected < min(len(keys), (len(prompt) - 1) // BLOCK) and keys[expected] in self.reported:
                expected += 1
            assert self.cache.match(keys, len(prompt)) == expected

    def teardown(self) -> None:
        for name in list(self.live):
            self.cache.release(name)
        use = self.cache.audit()
        assert use.free + use.reusable == self.capacity


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def admit_one(cache: RankCache, name: str, prompt: list[int]) -> list[int] | None:
    keys = keys_of(prompt)
    tables = cache.admit([(name, keys, cache.match(keys, len(prompt)), len(prompt))])
    return tables[0] if tables else None


def test_the_last_token_is_never_reused() -> None:
    cache = RankCache(8, BLOCK)
    prompt = [1, 2, 3, 4]
    admit_one(cache, "a", prompt)
    cache.publish("a", 4)
    assert cache.match(keys_of(prompt), len(prompt)) == 1
    assert cache.match(keys_of([*prompt, 5]), 5) == 2


def test_eviction_takes_the_least_recently_used_leaf_first() -> None:
    cache = RankCache(4, BLOCK)
    for name, prompt in (("old", [1, 1, 2, 2]), ("new", [3, 3, 4, 4])):
        admit_one(cache, name, prompt)
        cache.publish(name, 4)
        cache.release(name)
    cache.take_changes()
    admit_one(cache, "next", [5])
    _, removed = cache.take_changes()
    assert removed == [keys_of([1, 1, 2, 2])[1]]


def test_room_goes_to_the_head_of_the_queue_even_if_others_pin_the_rest() -> None:
    """S23: prefixes are pinned before anything is evicted, yet later pins give way to an earlier request."""
    cache = RankCache(4, BLOCK)
    for name, prompt in (("a", [1, 1, 9]), ("b", [2, 2, 9])):
        admit_one(cache, name, prompt)
        cache.publish(name, 3)
        cache.release(name)
    head, second = [7, 7, 7, 7, 7, 7], [2, 2, 8]
    wanted = [
        ("head", keys_of(head), 0, len(head)),
        ("second", keys_of(second), cache.match(keys_of(second), len(second)), len(second)),
    ]
    tables = cache.admit(wanted)
    assert len(tables) == 1
    cache.release("head")
    cache.audit()


def test_a_prefix_evicted_between_walk_and_admission_admits_nobody_wrongly() -> None:
    """S21: the endpoint that was agreed is no longer there."""
    cache = RankCache(2, BLOCK)
    admit_one(cache, "a", [1, 1, 2])
    cache.publish("a", 3)
    cache.release("a")
    stale = cache.match(keys_of([1, 1, 3]), 3)
    assert stale == 1
    admit_one(cache, "b", [5, 5, 5, 5])
    assert cache.admit([("c", keys_of([1, 1, 3]), stale, 3)]) == []
    cache.release("b")
    cache.audit()


def test_audit_names_who_still_holds_blocks() -> None:
    cache = RankCache(4, BLOCK)
    admit_one(cache, "leaky", [1, 2, 3])
    with pytest.raises(AuditError, match="leaky"):
        cache.audit()


def test_hashes_are_stable_and_separate_salts_models_and_adapters() -> None:
    """S67: keys are equal in every process; equal tokens under another salt, LoRA or model never match."""
    tokens = pack([1, 2, 3, 4])
    assert block_hashes(tokens, 2, cache_seed("m", "", "")) == [0xA873754753709BE6, 0xA7F6C1F3A33F82E1]
    seeds = {cache_seed(*parts) for parts in (("m", "", ""), ("n", "", ""), ("m", "s", ""), ("m", "", "s"))}
    assert len(seeds) == 4
    assert cache_seed("a", "bc", "") != cache_seed("ab", "c", "")
