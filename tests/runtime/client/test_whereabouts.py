"""Every state that a live request can be in has its sentence, whatever of rank 0's threads has answered."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.client.request_ledger import LiveRequest
from wavepp_worker.runtime.client.whereabouts import Heard, whereabouts
from wavepp_worker.runtime.protocol.events import (
    AdmissionExplained,
    Admitted,
    Finished,
    Heartbeat,
    LanesExplained,
)
from wavepp_worker.runtime.protocol.requests import PrefillRequest, RankHandedOff
from wavepp_worker.runtime.protocol.whereabouts import InLanes, Preparing, Queued, Running, Whereabouts

NOW = 110.0
ADMITTED = Admitted(request_id="a-0", endpoint=16, queued=6.0, admission=1.0)
FINISHED = Finished(request_id="a-0", first=SampledToken(1), stages=())
NAMES = {"a-0": "a", "w-1": "w"}


def live(**fields: Any) -> LiveRequest:
    """Submitted ten seconds ago; as ranks know it, ``a-0``."""
    request = PrefillRequest.of("a-0", [1] * 40)
    made = LiveRequest("a", request, Future(), submitted=100.0, deadline=200.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def beat(rank: int, waves: int) -> Heartbeat:
    return Heartbeat(rank=rank, wave_age=0.0, waiting=0, running=0, used_blocks=0, waves=waves, rounds=0)


def admission(*requests: Queued | Preparing | Running, **fields: Any) -> AdmissionExplained:
    return AdmissionExplained(question_id=0, requests=requests, **fields)


def lanes(*requests: InLanes, in_flight: int = 0, on_device: int = 0) -> LanesExplained:
    return LanesExplained(question_id=0, requests=requests, in_flight=in_flight, ring=6, on_device=on_device)


def lane(**fields: Any) -> InLanes:
    return InLanes(**{"request_id": "a-0", "place": 2, "lanes": 3, "next": 16, "end": 40, **fields})


def where(request: LiveRequest, heard: Heard) -> Whereabouts:
    return whereabouts(request, heard, NOW, 3, NAMES.get)


RUNNING = Running(request_id="a-0")
PREPARING = Preparing(request_id="a-0", seconds=0.02, endpoint=16)
WAITS = "was admitted 3.0 s ago and waits for a wave, as number 2 of 3 that have tokens left"
CASES: list[tuple[str, LiveRequest, Heard, tuple[int, ...], float, str]] = [
    (
        "queued",
        live(),
        Heard(admission(Queued(request_id="a-0", seconds=9.0, because="looking up")), lanes()),
        (0,),
        9.0,
        "is first in the queue, for 9.0 s: all ranks look its prefix up in the next round",
    ),
    (
        "queued",
        live(),
        Heard(
            admission(Queued(request_id="a-0", seconds=9.0, because="round"), round_id=3, missing=(1,)),
            lanes(),
        ),
        (1,),
        9.0,
        "is first in the queue, for 9.0 s, and fits: it is asked for with the next round; round 3 is "
        "open, and the vote "
        "of rank 1 is missing",
    ),
    (
        "preparing",
        live(),
        Heard(admission(PREPARING, round_id=7), lanes()),
        (),
        0.02,
        "is being prepared at token 16, for 20 ms; all ranks have voted on round 7",
    ),
    ("queued", live(), Heard(admission(), lanes()), (0,), 10.0, "is about to be taken by rank 0"),
    (
        "queued",
        live(),
        Heard(admission(round_id=3, missing=(1,)), lanes()),
        (1,),
        10.0,
        "is about to be taken by rank 0; round 3 is open, and the vote of rank 1 is missing",
    ),
    (
        "preparing",
        live(),
        Heard(admission(PREPARING, round_id=7, missing=(1, 2)), lanes()),
        (1, 2),
        0.02,
        "is being prepared at token 16, for 20 ms; round 7 is open, and the votes of ranks 1 and 2 are missing",
    ),
    (
        "preparing",
        live(),
        Heard(
            admission(
                Preparing(request_id="a-0", seconds=0.02, endpoint=32, writer="w-1", lowered=True), missing=()
            ),
            lanes(),
        ),
        (0,),
        0.02,
        "is being prepared at token 32, which request w computes, for 20 ms; some rank had less of its "
        "prefix than was "
        "believed; its next round begins now",
    ),
    (
        "preparing",
        live(),
        Heard(
            admission(Preparing(request_id="a-0", seconds=0.02, endpoint=0), round_id=7, missing=(2,)), None
        ),
        (2,),
        0.02,
        "is being prepared from its beginning, for 20 ms; round 7 is open, and the vote of rank 2 is missing",
    ),
    (
        "not heard",
        live(),
        Heard(None, lanes()),
        (0,),
        10.0,
        "was submitted 10.0 s ago; rank 0's WAVE thread, which admits requests, did not say in time where it is",
    ),
    (
        "not heard",
        live(admitted=ADMITTED),
        Heard(admission(RUNNING), None),
        (0,),
        3.0,
        "was admitted 3.0 s ago; rank 0 computes a wave, and its LOOP thread did not say in time how far it is",
    ),
    (
        "reading",
        live(admitted=ADMITTED),
        Heard(admission(RUNNING), lanes(lane(after="w-1", after_tokens=8))),
        (0,),
        3.0,
        "was admitted 3.0 s ago, and reads the first 16 tokens of its prompt from request w, which is "
        "being computed: "
        "8 tokens of that have to be in waves before",
    ),
    (
        "admitted",
        live(admitted=ADMITTED),
        Heard(admission(RUNNING), lanes(lane(), in_flight=6)),
        (0,),
        3.0,
        f"{WAITS}: 24 tokens of 40 are to be computed; 6 of at most 6 waves are in flight",
    ),
    (
        "admitted",
        live(admitted=ADMITTED),
        Heard(admission(RUNNING), lanes()),
        (0,),
        3.0,
        "was admitted 3.0 s ago; no wave carries it: it is about to get its place, or its answer is on its way",
    ),
    (
        "computing",
        live(admitted=ADMITTED),
        Heard(
            admission(RUNNING),
            lanes(lane(next=32, waves=(2, 3), wave_ids=(8, 9)), in_flight=4),
            [beat(0, 2), beat(1, 8), beat(2, 7)],
        ),
        (1,),
        3.0,
        "was admitted 3.0 s ago and is computed in waves 2 and 3 of 4 in flight, the first of these at "
        "rank 1 or beyond "
        "by the last heartbeats; 8 tokens of 40 are not in waves yet, as number 2 of 3 that have tokens left",
    ),
    (
        "computing",
        live(admitted=ADMITTED),
        Heard(
            admission(RUNNING),
            lanes(lane(next=0, end=0, place=0, waves=(4,), wave_ids=(10,)), in_flight=4, on_device=1),
            [beat(0, 10), beat(1, 8), beat(2, 7)],
        ),
        (0,),
        3.0,
        "was admitted 3.0 s ago and is computed in wave 4 of 4 in flight, the first of these at rank 0 "
        "or beyond by the "
        "last heartbeats; no tokens are left",
    ),
    (
        "answering",
        live(finished=FINISHED, answered=109.0),
        Heard(admission(), lanes()),
        (0,),
        1.0,
        "is computed, and its answer is on its way",
    ),
    (
        "holding",
        live(
            admitted=ADMITTED,
            finished=FINISHED,
            answered=105.0,
            closed=True,
            settled={1: RankHandedOff(1, "received", 105.0)},
        ),
        Heard(admission(), lanes()),
        (0, 2),
        5.0,
        "is prefilled; its KV is held on ranks 0 and 2 for the decode worker, for 5.0 s",
    ),
    (
        "leaving",
        live(admitted=ADMITTED, closed=True, aborted=True),
        Heard(admission(RUNNING), lanes()),
        (0, 1, 2),
        0.0,
        "was given up, and not all ranks have let go of it: a wave still carries it, or others read what it computes",
    ),
]


@pytest.mark.parametrize(
    ("state", "request_", "heard", "ranks", "since", "sentence"), CASES, ids=[each[0] for each in CASES]
)
def test_the_sentence_of(
    state: str, request_: LiveRequest, heard: Heard, ranks: tuple[int, ...], since: float, sentence: str
) -> None:
    found = where(request_, heard)
    assert (found.state, found.sentence, found.ranks) == (state, sentence, ranks)
    assert found.since == pytest.approx(since)
    assert (found.request_id, found.seconds, found.prompt_tokens) == ("a", 10.0, 40)


def test_on_the_last_rank_nothing_is_beyond() -> None:
    beats = [beat(0, 9), beat(1, 9), beat(2, 8)]
    heard = Heard(admission(RUNNING), lanes(lane(waves=(1,), wave_ids=(8,)), in_flight=1), beats)
    assert "at rank 2 by the last heartbeats" in where(live(admitted=ADMITTED), heard).sentence


def test_what_the_threads_said_is_told_under_the_names_of_callers() -> None:
    heard = Heard(
        admission(Running(request_id="a-0", writer="w-1")), lanes(lane(after="gone-7", after_tokens=1))
    )
    found = where(live(admitted=ADMITTED), heard)
    assert isinstance(found.admission, Running)
    assert (found.admission.request_id, found.admission.writer) == ("a", "w")
    assert found.lane is not None
    assert found.lane.after == "gone-7", "one that is over keeps the only name there is"


def test_a_question_is_answered_once_both_threads_have_said_what_they_know() -> None:
    heard = Heard()
    heard.take(admission())
    assert not heard.complete
    heard.take(lanes())
    assert heard.complete
