from __future__ import annotations

import pytest
from wavepp_worker.intake.shares import Shares, room_for, shares


@pytest.mark.parametrize("room", [2, 3, 8])
def test_both_requests_together_ask_for_the_room_there_is(room: int) -> None:
    assert shares(room, 0) == Shares(1, room - 1)


def test_a_single_place_is_offered_by_turns_and_none_to_nobody() -> None:
    assert {shares(1, turn) for turn in range(4)} == {Shares(0, 1), Shares(1, 0)}
    assert shares(0, 0) == shares(-3, 1) == Shares(0, 0)


def test_room_is_less_what_waits_whoever_sent_it() -> None:
    assert room_for(8, waiting=0, queued=0, held=0) == 8
    assert room_for(8, waiting=3, queued=3, held=5) == 5
    # The endpoint's requests wait as well.
    assert room_for(8, waiting=3, queued=9, held=5) == 1
    assert room_for(8, waiting=3, queued=90, held=5) == 0


def test_texts_without_tokens_take_no_room_up_to_a_number() -> None:
    assert room_for(8, waiting=8, queued=0, held=8, texts=8) == 8
    assert room_for(8, waiting=12, queued=0, held=12, texts=10) == 4
    assert room_for(8, waiting=16, queued=0, held=16, texts=16) == 0
