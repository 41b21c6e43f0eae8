from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.dynamo.kv_event_thread import KvEventThread
from wavepp_worker.dynamo.kv_events import (
    MAX_BLOCKS_PER_EVENT,
    PendingEvents,
    RemovedEvent,
    StoredEvent,
    signed,
)
from wavepp_worker.runtime.protocol.requests import IndexDelta

from tests.support.waiting import wait_until

BLOCK = 2


def stored(*hashes: int, parent: int | None = None, salt: str = "", lora: str = "") -> IndexDelta:
    tokens = np.array([token for block_hash in hashes for token in (block_hash % 1000, 7)], dtype="<u4")
    return IndexDelta(stored=hashes, parent=parent, tokens=tokens.tobytes(), salt=salt, lora=lora)


class Router:
    """Keeps what it is told, as Dynamo's does: refuses children of unknown parents."""

    def __init__(self) -> None:
        self.blocks: dict[int, int | None] = {}
        self.calls: list[tuple[str, Any]] = []
        self.refused: list[int] = []
        self.busy = False

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> None:
        assert len(token_ids) == sum(num_block_tokens)
        assert all(-(2**63) <= value < 2**63 for value in block_hashes)
        self.calls.append(("stored", (token_ids, block_hashes, parent_hash, lora_name, cache_salt)))
        parent = parent_hash
        for block_hash in block_hashes:
            if parent is not None and parent not in self.blocks:
                self.refused.append(block_hash)
                return
            self.blocks[block_hash] = parent
            parent = block_hash

    def publish_removed(self, block_hashes: list[int]) -> None:
        self.calls.append(("removed", block_hashes))
        for block_hash in block_hashes:
            assert block_hash not in self.blocks.values(), "a parent was removed before its child"
            self.blocks.pop(block_hash)

    def take(self, events: list[StoredEvent | RemovedEvent]) -> None:
        for event in events:
            if isinstance(event, RemovedEvent):
                self.publish_removed([signed(value) for value in event.hashes])
            else:
                first = event.blocks[0]
                self.publish_stored(
                    np.frombuffer(b"".join(block.tokens for block in event.blocks), "<u4").tolist(),
                    [BLOCK] * len(event.hashes),
                    [signed(value) for value in event.hashes],
                    None if first.parent is None else signed(first.parent),
                )


def test_hashes_become_signed_numbers_of_the_same_bits() -> None:
    assert [signed(value) for value in (0, 2**63 - 1, 2**63, 2**64 - 1)] == [0, 2**63 - 1, -(2**63), -1]


def test_a_stored_chain_is_published_with_all_that_identifies_it() -> None:
    router, events = Router(), KvEventThread(BLOCK)
    events.start(router)
    events.on_index(stored(2**64 - 1, 5, salt="s", lora="l"))
    events.on_index(stored(6, parent=5, salt="s", lora="l"))
    wait_until(lambda: len(router.blocks) == 3)
    events.close()
    tokens, hashes, parent, lora, salt = router.calls[0][1]
    assert (tokens[:2], hashes[:2], parent, lora, salt) == ([(2**64 - 1) % 1000, 7], [-1, 5], None, "l", "s")


def test_what_came_before_the_publisher_is_published_once_it_is_there() -> None:
    router, events = Router(), KvEventThread(BLOCK)
    events.on_index(stored(1, 2))
    events.start(router)
    wait_until(lambda: set(router.blocks) == {1, 2})
    events.close()
    events.close()


def test_chains_of_other_salts_or_places_are_events_of_their_own() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(1, 2))
    pending.apply(stored(3, parent=1))
    pending.apply(stored(4, parent=3, salt="x"))
    assert [event.hashes for event in pending.take()] == [(1, 2), (3,), (4,)]


def test_a_block_that_came_and_went_is_not_mentioned() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(1, 2))
    pending.apply(IndexDelta(removed=(2,)))
    assert [event.hashes for event in pending.take()] == [(1,)]
    pending.apply(IndexDelta(removed=(1,)))
    pending.apply(stored(1))
    assert pending.take() == []


def test_long_chains_are_cut() -> None:
    pending = PendingEvents(BLOCK)
    pending.apply(stored(*range(1, 2 * MAX_BLOCKS_PER_EVENT + 2)))
    assert [len(event.hashes) for event in pending.take()] == [MAX_BLOCKS_PER_EVENT, MAX_BLOCKS_PER_EVENT, 1]


def test_a_publisher_that_fails_once_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Router):
        def publish_stored(self, *args: Any, **kwargs: Any) -> None:
            if not self.calls:
                self.calls.append(("failed", None))
                raise RuntimeError("no route")
            super().publish_stored(*args, **kwargs)

    router, events = Failing(), KvEventThread(BLOCK)
    events.start(router)
    events.on_index(stored(1))
    wait_until(lambda: router.calls)
    events.on_index(stored(9))
    wait_until(lambda: 9 in router.blocks)
    events.close()
    assert "does not learn of 1 blocks" in caplog.text


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), pace=st.floats(0.0, 1.0))
def test_however_slow_the_publisher_the_router_ends_up_right(seed: int, pace: float) -> None:
    """A random tree grows and shrinks; the publisher takes what is pending at random moments."""
    draw = random.Random(seed)
    pending, router = PendingEvents(BLOCK), Router()
    tree: dict[int, int | None] = {}
    for _ in range(80):
        leaves = [node for node in tree if node not in tree.values()]
        if leaves and draw.random() < 0.45:
            leaf = draw.choice(leaves)
            del tree[leaf]
            pending.apply(IndexDelta(removed=(leaf,)))
        else:
            parent = draw.choice([None, *tree])
            # Few names, so that blocks come back after they were removed.
            child = (parent or 0) * 4 + draw.randrange(1, 4)
            if child not in tree and child < 2**64:
                tree[child] = parent
                pending.apply(stored(child, parent=parent))
        assert len(pending) <= len(tree) + len(router.blocks)
        if draw.random() < pace:
            router.take(pending.take())
    router.take(pending.take())
    assert router.refused == []
    assert set(router.blocks) == {signed(node) for node in tree}
