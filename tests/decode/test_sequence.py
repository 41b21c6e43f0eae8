from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.decode.guide import COMPLETE_SECONDS, Guide
from wavepp_worker.decode.guide_turns import GuideTurns
from wavepp_worker.decode.sequence import Sequence
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.stage import ChunkState

from tests.support.guided import SlowMatcher
from tests.support.waiting import WAIT_SECONDS


def sequence(**values: object) -> Sequence:
    fields = {"request_id": "r", "tokens": token_ids.pack(range(5)), "max_tokens": 4}
    address = BootstrapAddress(host="127.0.0.1", port=1, room=1, secret=Secret.fresh())
    return Sequence(DecodeRequest(**{**fields, "handoff": address, **values}))  # type: ignore[arg-type]


def accepted(sequence: Sequence, tokens: list[int]) -> list[str | None]:
    reasons = []
    for token in tokens:
        sequence.accept(token)
        reasons.append(sequence.ended(WAIT_SECONDS))
    return reasons


def test_length() -> None:
    assert accepted(sequence(), [7, 7, 7, 7]) == [None, None, None, "length"]


def test_the_first_token_can_be_the_last() -> None:
    assert accepted(sequence(max_tokens=1), [7]) == ["length"]
    assert accepted(sequence(stop_token_ids=(7,)), [7]) == ["stop"]


def test_stop_beats_length() -> None:
    assert accepted(sequence(max_tokens=2, stop_token_ids=(9, 8)), [7, 8]) == [None, "stop"]


@pytest.mark.parametrize("at_least", [0, 1, 2])
def test_stop_tokens_are_banned_and_ignored_below_min_tokens(at_least: int) -> None:
    seq = sequence(min_tokens=at_least, stop_token_ids=(7, 8))
    reasons = []
    while not reasons or reasons[-1] is None:
        assert seq.banned == ((7, 8) if len(seq.generated) < at_least else ())
        reasons += accepted(seq, [7])
    assert reasons == [None] * at_least + ["stop"]


def test_each_chunk_is_the_newest_token_and_none_of_the_prompt() -> None:
    seq, table = sequence(), torch.tensor([3, 1])
    for new in range(1, 4):
        seq.accept(7)
        chunk = seq.next_chunk(table, 6)
        assert (chunk.start, chunk.length, chunk.wants_logits) == (5 + new - 1, 1, True)
        assert chunk.block_table is table
        assert chunk.state == ChunkState(6, 6), "the state goes on where it is"
        assert seq.prompt_tokens_in(chunk) == 0
        seq.ran(chunk)


def test_after_it_was_preempted_all_of_it_runs_again_in_parts() -> None:
    seq, table = sequence(), torch.tensor([3, 1])
    accepted(seq, [7, 8, 9])
    seq.preempt()
    parts = []
    while seq.left:
        chunk = seq.next_chunk(table, 6, 3)
        parts.append((seq.tokens_of(chunk), chunk.wants_logits, chunk.state))
        seq.ran(chunk)
    assert parts == [
        ([0, 1, 2], False, ChunkState(None, 6)),
        ([3, 4, 7], False, ChunkState(6, 6)),
        ([8, 9], True, ChunkState(6, 6)),
    ]


def test_prompt_tokens_would_be_counted() -> None:
    seq = sequence()
    seq.accept(7)
    for start, length, expected in [(0, 5, 5), (3, 4, 2), (4, 1, 1), (5, 1, 0)]:
        chunk = seq.next_chunk(torch.tensor([0]), 0)
        assert seq.prompt_tokens_in(type(chunk)(start, length, chunk.block_table, True)) == expected


class Complete(SlowMatcher):
    def __init__(self) -> None:
        super().__init__(b"\x01")
        self.go.set()

    def accept(self, token: int, aside: bool = False) -> bool:
        return token == 9


def test_an_answer_that_nothing_can_follow_stops_however_short() -> None:
    with ThreadPoolExecutor(1) as threads:
        seq = sequence(min_tokens=4, max_tokens=4)
        seq.guide = Guide(Complete(), GuideTurns(threads, 1))
        assert accepted(seq, [8, 9]) == [None, "stop"]
        seq = sequence(max_tokens=2)
        seq.guide = Guide(Complete(), GuideTurns(threads, 1))
        assert accepted(seq, [8, 9]) == [None, "stop"], "rather than length"


class Thoughtful(Complete):
    """Takes longer than anybody waits for it between two tokens."""

    def accept(self, token: int, aside: bool = False) -> bool:
        time.sleep(10 * COMPLETE_SECONDS)
        return super().accept(token, aside)


def test_why_an_answer_ended_is_waited_for_where_nobody_asks_what_may_come_next() -> None:
    with ThreadPoolExecutor(1) as threads:
        seq = sequence(max_tokens=2)
        seq.guide = Guide(Thoughtful(), GuideTurns(threads, 1))
        seq.accept(8)
        assert seq.ended(0.0) is None
        seq.accept(9)
        assert seq.ended(0.0) == "stop"
        seq = sequence(max_tokens=1)
        seq.guide = Guide(Thoughtful(), GuideTurns(threads, 1))
        seq.accept(8)
        assert seq.ended(0.0) == "length"
