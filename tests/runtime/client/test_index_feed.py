"""What a router is told of: the blocks that every rank holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.moves import Tier
from wavepp_worker.errors import AuditError
from wavepp_worker.runtime.client.index_feed import IndexFeed
from wavepp_worker.runtime.protocol.events import CacheChanges, MovedBlocks, StoredRun
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

from tests.support.cache_bench import key
from tests.support.graph_process import REPOSITORY


def packed(numbers: Sequence[int]) -> bytes:
    return BlockKeys.of(key(number) for number in numbers).packed


def run(*numbers: int, parent: int | None = None, tokens: bytes = b"", salt: str = "") -> StoredRun:
    return StoredRun(packed(numbers), None if parent is None else key(parent), tokens, salt)


def test_a_block_is_stored_when_the_last_rank_has_it_and_removed_when_the_first_loses_it() -> None:
    """Promise 15."""
    feed = IndexFeed(ranks=2, block_size=1, model_id="model")
    tokens = token_ids.pack([7, 8])
    assert feed.apply(CacheChanges(rank=0, stored=(run(1, 2, tokens=tokens),))) == []
    (stored,) = feed.apply(CacheChanges(rank=1, stored=(run(1, 2),)))
    assert (len(stored.stored), stored.parent, stored.tokens) == (2, None, tokens)
    (removed,) = feed.apply(CacheChanges(rank=1, removed=key(2)))
    assert removed.removed == stored.stored[1:]
    assert feed.apply(CacheChanges(rank=0, removed=key(2))) == []
    with pytest.raises(AuditError, match="had not stored"):
        feed.apply(CacheChanges(rank=0, removed=key(2)))
    (again,) = feed.apply(CacheChanges(rank=1, stored=())) or [None]
    assert again is None
    assert feed.apply(CacheChanges(rank=0, stored=(run(2, parent=1, tokens=tokens[4:]),))) == []
    (again,) = feed.apply(CacheChanges(rank=1, stored=(run(2, parent=1),)))
    assert (again.stored, again.parent) == (stored.stored[1:], stored.stored[0])


def told(
    numbers: Sequence[int], tokens: Sequence[int], model_id: str = "model", salt: str = ""
) -> IndexDelta:
    feed = IndexFeed(ranks=1, block_size=2, model_id=model_id)
    run_ = run(*numbers, tokens=token_ids.pack(tokens), salt=salt)
    (delta,) = feed.apply(CacheChanges(rank=0, stored=(run_,)))
    return delta


def test_a_router_is_told_the_same_hashes_by_every_replica_whatever_its_keys() -> None:
    """S67: Dynamo's router expects equal prefixes to have equal hashes on all workers."""
    one, other = told([1, 2], [5, 6, 7, 8]), told([11, 12], [5, 6, 7, 8])
    assert one == other
    assert all(0 <= each < 2**64 for each in one.stored)
    apart = [one, told([1, 2], [5, 6, 7, 9]), told([1, 2], [4, 6, 7, 8]), told([1, 2], [5, 6, 7, 8], "other")]
    apart.append(told([1, 2], [5, 6, 7, 8], salt="tenant"))
    assert [delta.stored[0] for delta in apart[:2]] == [one.stored[0]] * 2, "only the second block differs"
    assert len({delta.stored[1] for delta in apart}) == len(apart), "a hash stands for the whole prefix"


def test_hashes_and_keys_do_not_depend_on_the_process_that_makes_them() -> None:
    """S67: whatever Python makes its own hashes of."""
    program = (
        "from tests.runtime.client.test_index_feed import told\n"
        "from wavepp_worker import token_ids\n"
        "from wavepp_worker.block_keys import BlockKeyMaker\n"
        "keys = BlockKeyMaker(bytes(32), 'm', 2).keys(token_ids.pack([5, 6, 7, 8]), 'salt', 'poet')\n"
        "print(told([1, 2], [5, 6, 7, 8], salt='tenant').stored, keys.hex(), hash('a'))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.rsplit(" ", 1)
        for seed in ("1", "2")
    ]
    assert said[0][0] == said[1][0] != ""
    assert said[0][1] != said[1][1], "Python's own are others"


def test_blocks_whose_hashes_are_equal_by_chance_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router is told of both, and of the end of both; nothing here believes they are one."""
    monkeypatch.setattr("wavepp_worker.runtime.client.index_feed.HASH_BYTES", 0)
    feed = IndexFeed(ranks=1, block_size=1, model_id="model")
    stored = [run(number, tokens=token_ids.pack([number])) for number in (1, 2)]
    assert [delta.stored for delta in feed.apply(CacheChanges(rank=0, stored=tuple(stored)))] == [(0,), (0,)]
    assert feed.stored() == 2
    assert [delta.removed for delta in feed.apply(CacheChanges(rank=0, removed=key(1)))] == [(0,)]
    assert feed.stored() == 1
    assert [delta.removed for delta in feed.apply(CacheChanges(rank=0, removed=key(2)))] == [(0,)]


def test_rank_0_says_what_a_block_is_of_whoever_has_it_last() -> None:
    """Other ranks restore blocks whose tokens and salt they do not know; rank 0 may have others."""
    tokens = bytes(range(12))
    for first in (0, 1):
        feed = IndexFeed(ranks=2, block_size=1, model_id="model")
        rank0 = CacheChanges(rank=0, stored=(StoredRun(packed([1, 2, 3]), None, tokens, "salt", "lora"),))
        rank1 = CacheChanges(rank=1, stored=(run(1, 2, 9), run(4, parent=2)))
        told = [
            delta for each in ((rank0, rank1) if first == 0 else (rank1, rank0)) for delta in feed.apply(each)
        ]
        (delta,) = told
        assert (len(delta.stored), delta.parent, delta.tokens) == (2, None, tokens[:8])
        assert (delta.salt, delta.lora) == ("salt", "lora")
        assert feed.apply(CacheChanges(rank=1, removed=key(9))) == []


def test_a_block_is_on_the_slowest_tier_that_it_is_on_on_any_rank() -> None:
    feed = IndexFeed(ranks=2, block_size=1, model_id="model")
    feed.apply(CacheChanges(rank=0, stored=(run(1, 2, tokens=token_ids.pack([7, 8])),)))
    assert feed.apply(CacheChanges(rank=0, moved=(MovedBlocks(Tier.HOST, packed([2])),))) == []
    first, second = feed.apply(CacheChanges(rank=1, stored=(run(1, 2),)))
    assert (first.tier, second.tier, second.parent) == (Tier.DEVICE, Tier.HOST, first.stored[0])
    (moved,) = feed.apply(CacheChanges(rank=1, moved=(MovedBlocks(Tier.DISK, packed([2])),)))
    assert moved == IndexDelta(moved=second.stored, tier=Tier.DISK)
    assert feed.apply(CacheChanges(rank=0, moved=(MovedBlocks(Tier.DEVICE, packed([2])),))) == []
    (moved,) = feed.apply(CacheChanges(rank=1, moved=(MovedBlocks(Tier.DEVICE, packed([2])),)))
    assert moved == IndexDelta(moved=second.stored, tier=Tier.DEVICE)
    with pytest.raises(AuditError, match=r"moved block .*, which it had not stored"):
        feed.apply(CacheChanges(rank=1, moved=(MovedBlocks(Tier.DISK, packed([3])),)))


@given(st.data())
def test_the_feed_equals_the_intersection_of_the_ranks(data: st.DataObject) -> None:
    """Whatever the interleaving, a router believes exactly what all ranks hold, parents first."""
    ranks = data.draw(st.integers(1, 4))
    feed = IndexFeed(ranks, block_size=1, model_id="model")
    hashes = told_one_by_one(6)
    depth = [0] * ranks
    believed: list[int] = []
    for _ in range(data.draw(st.integers(0, 30))):
        rank = data.draw(st.integers(0, ranks - 1))
        target = data.draw(st.integers(0, 6))
        grow = tuple(range(depth[rank] + 1, target + 1))
        shrink = tuple(range(depth[rank], target, -1))
        parent = depth[rank] or None
        tokens = bytes(4 * len(grow)) if rank == 0 else b""
        stored = (run(*grow, parent=parent, tokens=tokens),) if grow else ()
        for delta in feed.apply(CacheChanges(rank=rank, stored=stored, removed=packed(shrink))):
            for removed in delta.removed:
                assert believed.pop() == removed, "a parent was removed before its child"
            if delta.stored:
                assert delta.parent == (believed[-1] if believed else None)
                assert len(delta.tokens) == 4 * len(delta.stored)
                believed.extend(delta.stored)
        depth[rank] = target
        assert believed == hashes[: min(depth)]
        assert feed.stored() == min(depth)
        assert [feed.stored(each) for each in range(ranks)] == depth


def told_one_by_one(blocks: int) -> list[int]:
    feed = IndexFeed(1, block_size=1, model_id="model")
    runs = (run(at, parent=at - 1 if at > 1 else None, tokens=bytes(4)) for at in range(1, blocks + 1))
    return [feed.apply(CacheChanges(rank=0, stored=(each,)))[0].stored[0] for each in runs]


def test_a_prompt_begins_with_what_every_rank_has() -> None:
    feed = IndexFeed(ranks=2, block_size=1, model_id="model")
    prompt = BlockKeys(packed([1, 2, 3, 4]))
    feed.apply(CacheChanges(rank=0, stored=(run(1, 2, 3, tokens=token_ids.pack([5, 6, 7])),)))
    assert feed.leading(prompt) == 0
    feed.apply(CacheChanges(rank=1, stored=(run(1, 2),)))
    assert (feed.leading(prompt), feed.leading(prompt[:1]), feed.leading(BlockKeys(b""))) == (2, 1, 0)
    feed.apply(CacheChanges(rank=0, removed=key(2)))
    assert feed.leading(prompt) == 1
    # What comes after a gap is of no use.
    feed.apply(CacheChanges(rank=1, stored=(run(3, parent=2),)))
    assert feed.leading(prompt) == 1
