"""Every reason to be queued has its sentence."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from wavepp_worker.runtime.client.queue_sentences import queued_sentence
from wavepp_worker.runtime.protocol.whereabouts import Queued, QueuedBecause

SENTENCES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"because": "announcing", "ahead": 2},
        "queued",
        "is queued, for 3.2 s, behind 2 requests and is announced to all ranks with the next round",
    ),
    (
        {"because": "looking up"},
        "queued",
        "is first in the queue, for 3.2 s: all ranks look its prefix up in the next round",
    ),
    (
        {"because": "places", "ahead": 4, "higher": 2, "limit": 64},
        "queued",
        "is queued, for 3.2 s, behind 4 requests (2 of them of a higher priority than its 0, first come, "
        "first served): "
        "all 64 places (max_num_seqs) are taken by requests that hold a lease",
    ),
    (
        {"because": "room", "needs": 1200, "room": 800},
        "no room",
        "is first in the queue, for 3.2 s, and has no room: it needs 1,200 tokens, and 800 tokens can be "
        "reserved on rank 0",
    ),
    (
        {"because": "other rank", "needs": 1200},
        "no room",
        "is first in the queue, for 3.2 s, and has no room: another rank than 0 had none for the 1,200 "
        "tokens that it "
        "needs",
    ),
    (
        {"because": "writer", "writer": "w"},
        "queued",
        "waits, for 3.2 s, for request w, which is being prepared and computes what its prompt begins with",
    ),
    (
        {"because": "ahead", "ahead": 1, "order": "prefix", "passed": 2000, "first": "f"},
        "queued",
        "is queued, for 3.2 s, behind 1 request (order=prefix: while not all fit, those that compute "
        "least come first; "
        "those that passed it compute 2,000 tokens); the first of them is f",
    ),
    (
        {"because": "round", "order": "prefix"},
        "queued",
        "is first in the queue, for 3.2 s, and fits: it is asked for with the next round, unless others "
        "that compute less "
        "come first (order=prefix)",
    ),
]


@pytest.mark.parametrize(
    ("fields", "state", "sentence"), SENTENCES, ids=[each[0]["because"] for each in SENTENCES]
)
def test_the_sentence_of(fields: dict[str, Any], state: str, sentence: str) -> None:
    assert queued_sentence(Queued(request_id="a", seconds=3.2, **fields)) == (state, sentence)


def test_no_reason_is_without_a_sentence() -> None:
    assert {each[0]["because"] for each in SENTENCES} == set(get_args(QueuedBecause))
