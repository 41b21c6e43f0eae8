from __future__ import annotations

import pytest
from wavepp_worker import token_ids
from wavepp_worker.runtime.tiers.block_origins import TEXT_BYTES, BlockOrigin, BlockOrigins, origin_bytes

from tests.support.cache_bench import key

TOKENS = token_ids.pack(list(range(1000, 1016)))


def test_an_origin_comes_back_from_what_the_disk_kept() -> None:
    before, after = BlockOrigins(16), BlockOrigins(16)
    origin = BlockOrigin(TOKENS, "tenant ü", "adapter")
    before.add(key(1), origin)
    assert before.get(key(1)) == origin
    packed = before.packed(key(1))
    assert 0 < len(packed) <= origin_bytes(16)
    assert after.load(key(1), packed)
    assert after.get(key(1)) == origin


def test_salt_and_adapter_of_just_the_right_size_are_kept_and_longer_ones_are_not() -> None:
    origins = BlockOrigins(16)
    origins.add(key(1), BlockOrigin(TOKENS, "s" * (TEXT_BYTES - 30), "l" * 30))
    assert len(origins.packed(key(1))) <= origin_bytes(16)
    assert origins.get(key(1)).lora == "l" * 30
    origins.add(key(2), BlockOrigin(TOKENS, "s" * 100_000, ""))
    assert origins.packed(key(2)) == b""
    assert not BlockOrigins(16).load(key(2), origins.packed(key(2)))


@pytest.mark.parametrize("packed", [b"", b"\x00", b"\x93\x01\x02\x03", b"not an origin", bytes(100)])
def test_what_is_no_origin_is_not_taken(packed: bytes) -> None:
    origins = BlockOrigins(16)
    assert not origins.load(key(1), packed)
    assert len(origins) == 0


def test_what_is_not_reusable_any_more_is_forgotten() -> None:
    origins = BlockOrigins(16)
    for number in range(4):
        origins.add(key(number), BlockOrigin(TOKENS, "", ""))
    origins.drop(key(0))
    origins.drop(key(0))
    origins.keep_only({key(2), key(9)})
    assert len(origins) == 1
    assert origins.packed(key(2))
    assert origins.packed(key(3)) == b""
