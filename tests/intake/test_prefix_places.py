from __future__ import annotations

from wavepp_worker import token_ids
from wavepp_worker.intake.prefix_places import PIECE_TOKENS, Place, PrefixPlaces

LONG = list(range(3 * PIECE_TOKENS + 5))


def test_the_longest_prefix_says_where_a_prompt_goes() -> None:
    places = PrefixPlaces()
    places.note(token_ids.pack(LONG), "", "a")
    assert places.find(token_ids.pack([*LONG, 1, 2]), "") == Place("a", 3 * PIECE_TOKENS)
    other = [*LONG[: 2 * PIECE_TOKENS], *[7] * PIECE_TOKENS]
    assert places.find(token_ids.pack(other), "") == Place("a", 2 * PIECE_TOKENS)
    places.note(token_ids.pack(other), "", "b")
    assert places.find(token_ids.pack(other), "") == Place("b", 3 * PIECE_TOKENS)
    assert places.find(token_ids.pack(LONG), "") == Place("a", 3 * PIECE_TOKENS)


def test_other_salts_other_beginnings_and_short_prompts_are_nobodys() -> None:
    places = PrefixPlaces()
    places.note(token_ids.pack(LONG), "", "a")
    assert places.find(token_ids.pack(LONG), "salt") is None
    assert places.find(token_ids.pack(LONG[1:]), "") is None
    assert places.find(token_ids.pack(LONG[: PIECE_TOKENS - 1]), "") is None


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    places = PrefixPlaces(most=4)
    for number in range(3):
        places.note(token_ids.pack([number] * 2 * PIECE_TOKENS), "", str(number))
    assert places.find(token_ids.pack([0] * 2 * PIECE_TOKENS), "") is None
    assert places.find(token_ids.pack([2] * 2 * PIECE_TOKENS), "") == Place("2", 2 * PIECE_TOKENS)
    assert len(places._replicas) == 4
