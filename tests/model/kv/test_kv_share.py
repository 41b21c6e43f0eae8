"""Who gets how much KV."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.kv.kv_share import Share, activation_room, check_pool, share_out

OPEN = Share(device="cpu", weights=100, room=50, token_bytes=10, tokens=None, fraction=0.5)
GIB = 1 << 30


def out(free: int, *shares: Share) -> list[int]:
    return share_out(shares, lambda device: free)


def test_a_fraction_of_what_is_left_is_divided_among_those_that_share() -> None:
    assert out(1150, OPEN) == [50]
    # Of 1300 left, half, over 20 bytes a token.
    assert out(1600, OPEN, OPEN) == [32, 32]
    assert out(1150, replace(OPEN, device="cuda:0"), replace(OPEN, device="cuda:1")) == [50, 50]
    assert out(1150, replace(OPEN, fraction=1.0)) == [100]
    tiered = replace(OPEN, beside=500)
    assert out(1150, tiered) == [25]


def test_who_asks_for_tokens_gets_them_and_leaves_the_rest() -> None:
    fixed = replace(OPEN, tokens=70)
    assert out(2000, OPEN, fixed) == [50, 70]
    # Without anybody who takes the rest, the room of activations is nobody's concern.
    assert out(800, fixed) == [70]


def test_what_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        out(8 * GIB, replace(OPEN, weights=2 * GIB, tokens=7 * GIB // 10))
    assert str(caught.value) == (
        "kv_tokens: asks for 7.0 GiB of KV, over all ranks and with tiers in memory, beside 2.0 GiB of weights, but "
        "8.0 GiB are free on this machine; lower it"
    )
    with pytest.raises(ConfigError) as caught:
        out(3 * GIB, replace(OPEN, device="cuda:0", weights=2 * GIB, room=GIB))
    assert str(caught.value).startswith(
        "kv_memory_fraction: 3.0 GiB are free on cuda:0, of which weights take 2.0 and processes and activations up to "
        "1.0, so that nothing is left for KV"
    )


def test_a_pool_holds_one_request_at_least() -> None:
    check_pool(0.1, 105, 10, 100)
    for tokens, longest in ((109, 101), (9, 1)):
        with pytest.raises(
            ConfigError, match=r"^kv_memory_fraction: 0\.1 of the memory that is free beside weights"
        ):
            check_pool(0.1, tokens, 10, longest)


def test_activations_have_room_that_grows_with_a_wave() -> None:
    assert activation_room("cpu", 512, 2000, 8192, 384) < activation_room("cpu", 1024, 2000, 8192, 384) < GIB
    assert activation_room("cuda:0", 1, 1, 1, 1) > GIB
