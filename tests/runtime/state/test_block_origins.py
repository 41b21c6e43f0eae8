from __future__ import annotations

import pytest
from wavepp_worker import token_ids
from wavepp_worker.runtime.state.block_origins import TEXT_BYTES, BlockOrigin, BlockOrigins, origin_bytes

TOKENS = token_ids.pack(list(range(1000, 1016)))


def test_an_origin_comes_back_from_what_the_disk_kept() -> None:
    before, after = BlockOrigins(16), BlockOrigins(16)
    origin = BlockOrigin(TOKENS, "tenant ü", "adapter")
    before.add(1, origin)
    assert before.get(1) == origin
    packed = before.packed(1)
    assert 0 < len(packed) <= origin_bytes(16)
    assert after.load(1, packed)
    assert after.get(1) == origin


def test_salt_and_adapter_of_just_the_right_size_are_kept_and_longer_ones_are_not() -> None:
    origins = BlockOrigins(16)
    origins.add(1, BlockOrigin(TOKENS, "s" * (TEXT_BYTES - 30), "l" * 30))
    assert len(origins.packed(1)) <= origin_bytes(16)
    assert origins.get(1).lora == "l" * 30
    origins.add(2, BlockOrigin(TOKENS, "s" * 100_000, ""))
    assert origins.packed(2) == b""
    assert not BlockOrigins(16).load(2, origins.packed(2))


@pytest.mark.parametrize("packed", [b"", b"\x00", b"\x93\x01\x02\x03", b"not an origin", bytes(100)])
def test_what_is_no_origin_is_not_taken(packed: bytes) -> None:
    origins = BlockOrigins(16)
    assert not origins.load(1, packed)
    assert len(origins) == 0


def test_what_is_not_reusable_any_more_is_forgotten() -> None:
    origins = BlockOrigins(16)
    for key in range(4):
        origins.add(key, BlockOrigin(TOKENS, "", ""))
    origins.drop(0)
    origins.drop(0)
    origins.keep_only({2, 9})
    assert len(origins) == 1
    assert origins.packed(2)
    assert origins.packed(3) == b""
