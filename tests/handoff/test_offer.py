"""What a rank hands over of layers that see the last tokens only, in blocks of four tokens."""

from __future__ import annotations

import pytest
from wavepp_worker.handoff.offer import RankAddress


def address(*windows: tuple[int, int]) -> RankAddress:
    return RankAddress(
        rank=0,
        host="127.0.0.1",
        port=1,
        layers=(0, 3),
        block_size=4,
        dtype="float32",
        bytes_per_token=100,
        transport="socket",
        state_bytes=7,
        windows=windows,
    )


@pytest.mark.parametrize(("tokens", "first"), [(3, 0), (8, 0), (12, 4), (13, 4), (15, 4), (16, 8), (100, 92)])
def test_of_a_window_only_what_a_token_after_the_prompt_sees_is_handed_over(tokens: int, first: int) -> None:
    rank = address((6, 30))
    assert first <= max(0, tokens + 1 - 6), "the next token sees itself and five"
    assert rank.firsts(tokens) == {6: first}
    assert rank.size(tokens) == 100 * tokens - 30 * first + 7
    cuts = range(0, tokens, 3)
    pieces = [rank.piece_size(at, min(at + 3, tokens), tokens) for at in cuts]
    assert sum(pieces) + 7 == rank.size(tokens)
    assert min(pieces) >= 70 * 1


def test_of_other_layers_everything_is_handed_over() -> None:
    assert address().size(100) == 10_007
    assert address().piece_size(3, 5, 100) == 200
