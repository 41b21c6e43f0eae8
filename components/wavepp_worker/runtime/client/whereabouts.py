"""Where a request is, in one sentence: from what the engine's ledger and rank 0's threads know. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from wavepp_worker.runtime.client.queue_sentences import queued_sentence
from wavepp_worker.runtime.client.request_ledger import LiveRequest
from wavepp_worker.runtime.client.words import duration, listed, tokens
from wavepp_worker.runtime.protocol.events import AdmissionExplained, Heartbeat, LanesExplained
from wavepp_worker.runtime.protocol.whereabouts import InLanes, Preparing, Queued, Running, Whereabouts

Part = TypeVar("Part", Queued | Preparing | Running | None, InLanes | None)


@dataclass
class Heard:
    """What rank 0's threads answered to one question, as far as they did in time.

    Attributes:
        beats: the ranks' last heartbeats, in rank order.
    """

    admission: AdmissionExplained | None = None
    lanes: LanesExplained | None = None
    beats: Sequence[Heartbeat] = ()

    @property
    def complete(self) -> bool:
        return self.admission is not None and self.lanes is not None

    def take(self, answer: AdmissionExplained | LanesExplained) -> None:
        if isinstance(answer, AdmissionExplained):
            self.admission = answer
        else:
            self.lanes = answer

    def of(self, request_id: str) -> Queued | Preparing | Running | None:
        """What the WAVE thread says of a request."""
        requests = () if self.admission is None else self.admission.requests
        return next((each for each in requests if each.request_id == request_id), None)

    def lane(self, request_id: str) -> InLanes | None:
        """What the LOOP thread says of a request."""
        requests = () if self.lanes is None else self.lanes.requests
        return next((each for each in requests if each.request_id == request_id), None)


@dataclass(frozen=True)
class Found:
    """The part of ``Whereabouts`` that follows from the state; see there."""

    state: str
    sentence: str
    since: float
    ranks: tuple[int, ...] = (0,)


def whereabouts(
    live: LiveRequest, heard: Heard, now: float, ranks: int, name: Callable[[str], str | None]
) -> Whereabouts:
    """Where a request is.

    Args:
        now: monotonic seconds.
        ranks: of the engine.
        name: what callers call a request that ranks know under an id of its own; None if it is over.
    """
    request_id = live.request.request_id
    admission, lane = renamed(heard.of(request_id), name), renamed(heard.lane(request_id), name)
    if live.closed:
        found = _closed(live, now, ranks)
    elif isinstance(admission, Queued) and live.admitted is None:
        found = _queued(admission, heard)
    elif isinstance(admission, Preparing) and live.admitted is None:
        found = _preparing(admission, heard)
    elif live.finished is not None:
        found = Found("answering", "is computed, and its answer is on its way", now - live.answered)
    elif isinstance(admission, Running) or live.admitted is not None:
        found = _admitted(live, lane, heard, now)
    elif heard.admission is None:
        sentence = (
            f"was submitted {duration(now - live.submitted)} ago; rank 0's WAVE thread, which admits requests, did not "
            "say in time where it is"
        )
        found = Found("not heard", sentence, now - live.submitted)
    else:
        found = _with_round("queued", "is about to be taken by rank 0", now - live.submitted, heard.admission)
    return Whereabouts(
        request_id=live.name,
        state=found.state,
        sentence=found.sentence,
        seconds=now - live.submitted,
        since=found.since,
        ranks=found.ranks,
        prompt_tokens=live.request.prompt_tokens,
        priority=live.request.priority,
        admission=admission,
        lane=lane,
    )


def renamed(part: Part, name: Callable[[str], str | None]) -> Part:
    """What a thread of rank 0 said, with its requests as their callers call them."""
    if part is None:
        return None
    texts = {key: value for key, value in msgspec.structs.asdict(part).items() if isinstance(value, str)}
    return msgspec.structs.replace(part, **{key: name(value) or value for key, value in texts.items()})


def _closed(live: LiveRequest, now: float, ranks: int) -> Found:
    left = tuple(rank for rank in range(ranks) if rank not in live.settled)
    if live.aborted or live.finished is None:
        what = (
            "a wave still carries it, or others read what it computes" if not live.released else "KV is held"
        )
        return Found("leaving", f"was given up, and not all ranks have let go of it: {what}", 0.0, left)
    since = now - live.answered
    return Found(
        "holding",
        f"is prefilled; its KV is held on {listed('rank', left)} for the decode worker, for {duration(since)}",
        since,
        left,
    )


def _queued(queued: Queued, heard: Heard) -> Found:
    state, sentence = queued_sentence(queued)
    return _with_round(state, sentence, queued.seconds, heard.admission)


def _with_round(state: str, sentence: str, since: float, report: AdmissionExplained | None) -> Found:
    """Of a request that waits for a round: nobody is prepared before the one that is open is over."""
    if report is None or not report.missing:
        return Found(state, sentence, since)
    return Found(state, f"{sentence}; {_open_round(report)}", since, report.missing)


def _open_round(report: AdmissionExplained) -> str:
    if not report.missing:
        return f"all ranks have voted on round {report.round_id}"
    votes = "votes" if len(report.missing) > 1 else "vote"
    are = "are" if len(report.missing) > 1 else "is"
    return (
        f"round {report.round_id} is open, and the {votes} of {listed('rank', report.missing)} {are} missing"
    )


def _preparing(admission: Preparing, heard: Heard) -> Found:
    where = f"at token {admission.endpoint:,}" if admission.endpoint else "from its beginning"
    if admission.writer:
        where += f", which request {admission.writer} computes"
    lower = "; some rank had less of its prefix than was believed" if admission.lowered else ""
    since = f"for {duration(admission.seconds)}"
    report = heard.admission
    if report is None or report.round_id is None:
        return Found(
            "preparing",
            f"is being prepared {where}, {since}{lower}; its next round begins now",
            admission.seconds,
        )
    return Found(
        "preparing",
        f"is being prepared {where}, {since}{lower}; {_open_round(report)}",
        admission.seconds,
        report.missing,
    )


def _admitted(live: LiveRequest, lane: InLanes | None, heard: Heard, now: float) -> Found:
    since, begun, reused = 0.0, "was admitted", ""
    if live.admitted is not None:
        since = max(0.0, now - live.submitted - live.admitted.queued - live.admitted.admission)
        begun = f"was admitted {duration(since)} ago"
        reused = f" of {live.request.prompt_tokens:,}"
    if heard.lanes is None:
        sentence = f"{begun}; rank 0 computes a wave, and its LOOP thread did not say in time how far it is"
        return Found("not heard", sentence, since)
    if lane is None:
        sentence = f"{begun}; no wave carries it: it is about to get its place, or its answer is on its way"
        return Found("admitted", sentence, since)
    if lane.after:
        sentence = (
            f"{begun}, and reads the first {tokens(lane.next)} of its prompt from request {lane.after}, which is being "
            f"computed: {tokens(lane.after_tokens)} of that have to be in waves before"
        )
        return Found("reading", sentence, since)
    flying = f"{heard.lanes.in_flight} of at most {heard.lanes.ring} waves are in flight"
    left = lane.end - lane.next
    place = f"as number {lane.place} of {lane.lanes} that have tokens left"
    if not lane.waves:
        sentence = (
            f"{begun} and waits for a wave, {place}: {tokens(left)}{reused} are to be computed; {flying}"
        )
        return Found("admitted", sentence, since)
    waves = f"{listed('wave', lane.waves)} of {heard.lanes.in_flight} in flight"
    passed_rank_0 = lane.waves[0] <= heard.lanes.in_flight - heard.lanes.on_device
    rank = _rank_of(lane.wave_ids[0], heard.beats, 1 if passed_rank_0 and len(heard.beats) > 1 else 0)
    beyond = "" if rank == len(heard.beats) - 1 else " or beyond"
    at = "" if rank is None else f", the first of these at rank {rank}{beyond} by the last heartbeats"
    rest = f"{tokens(left)}{reused} are not in waves yet, {place}" if lane.place else "no tokens are left"
    return Found(
        "computing",
        f"{begun} and is computed in {waves}{at}; {rest}",
        since,
        (0,) if rank is None else (rank,),
    )


def _rank_of(wave_id: int, beats: Sequence[Heartbeat], first: int) -> int | None:
    """Of the ranks from ``first`` on, the first that had not executed a wave when it was last heard of.

    Every rank executes all waves, in order.
    """
    return next((beat.rank for beat in beats[first:] if beat.waves <= wave_id), None)
