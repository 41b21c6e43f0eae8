"""Keys are one chain, whichever way they are computed."""

from __future__ import annotations

import random
import threading

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.cache.hashing import RUN_BLOCKS, BlockHasher, block_hashes, cache_seed

BLOCK = 2
RUN_BYTES = 4 * BLOCK * RUN_BLOCKS


def plain_chain(tokens: bytes, block: int, seed: int) -> list[int]:
    keys = []
    for at in range(len(tokens) // (4 * block)):
        seed = xxhash.xxh3_64_intdigest(tokens[4 * block * at : 4 * block * (at + 1)], seed)
        keys.append(seed)
    return keys


@given(st.binary(max_size=300), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_block_hashes_are_the_chain(tokens: bytes, block: int, seed: int) -> None:
    assert block_hashes(tokens, block, seed) == plain_chain(tokens, block, seed)


def test_keys_never_change_from_one_version_or_host_to_another() -> None:
    """S67: replicas and restarted processes find each other's blocks by these keys."""
    tokens = b"".join(token.to_bytes(4, "little") for token in (1, 2, 3, 4))
    expected = [0xA873754753709BE6, 0xA7F6C1F3A33F82E1]
    assert block_hashes(tokens, 2, cache_seed("m", "", "")) == expected
    assert BlockHasher(2).keys(tokens, cache_seed("m", "", "")) == expected


def test_every_key_depends_on_the_whole_prefix() -> None:
    tokens = random.Random(1).randbytes(3 * RUN_BYTES)
    changed = bytes([tokens[0] ^ 1]) + tokens[1:]
    hasher = BlockHasher(BLOCK)
    assert not set(hasher.keys(tokens, 0)) & set(hasher.keys(changed, 0))
    assert not set(hasher.keys(tokens, 0)) & set(hasher.keys(tokens, 1))


@settings(deadline=None)
@given(st.data())
def test_remembered_runs_give_the_same_keys(data: st.DataObject) -> None:
    draw = random.Random(data.draw(st.integers(0, 3)))
    hasher = BlockHasher(BLOCK, runs=data.draw(st.integers(0, 6)))
    trunks = [draw.randbytes(4 * RUN_BYTES) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 8))):
        shared = data.draw(st.sampled_from(trunks))[: data.draw(st.integers(0, 4 * RUN_BYTES))]
        tokens = shared + draw.randbytes(data.draw(st.integers(0, 2 * RUN_BYTES)))
        seed = data.draw(st.integers(0, 1))
        assert hasher.keys(tokens, seed) == plain_chain(tokens, BLOCK, seed)


def test_a_shared_prefix_is_not_hashed_block_by_block_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = random.Random(2).randbytes(8 * RUN_BYTES)
    hasher = BlockHasher(BLOCK)
    hasher.keys(trunk, 0)
    hashed = []

    def note(tokens: bytes, block: int, seed: int) -> list[int]:
        hashed.append(len(tokens))
        return block_hashes(tokens, block, seed)

    monkeypatch.setattr("wavepp_worker.cache.hashing.block_hashes", note)
    hasher.keys(trunk + b"tail" * 10, 0)
    assert hashed == [40]


def test_what_is_remembered_is_bounded_and_keeps_the_front_of_the_latest_prompts() -> None:
    draw = random.Random(3)
    hasher = BlockHasher(BLOCK, runs=6)
    trunk = draw.randbytes(4 * RUN_BYTES)
    for _ in range(20):
        hasher.keys(trunk + draw.randbytes(4 * RUN_BYTES), 0)
        assert len(hasher) == 6
    remembered = set(hasher._runs)
    hasher.keys(trunk, 0)
    assert set(hasher._runs) == remembered


def test_threads_may_share_a_hasher() -> None:
    draw = random.Random(4)
    hasher = BlockHasher(BLOCK, runs=3)
    trunk = draw.randbytes(2 * RUN_BYTES)
    prompts = [trunk + draw.randbytes(2 * RUN_BYTES) for _ in range(8)]
    wrong = []

    def work() -> None:
        for _ in range(30):
            for tokens in prompts:
                if hasher.keys(tokens, 5) != plain_chain(tokens, BLOCK, 5):
                    wrong.append(tokens)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(hasher) <= 3
