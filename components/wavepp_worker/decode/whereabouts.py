"""Where a request of a decode engine is, in one sentence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from wavepp_worker.decode.decoding_request import DecodingRequest


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request is.

    Attributes:
        request_id: of its caller.
        state: ``arriving``, ``waiting`` (for blocks), ``preempted`` (so it waits again), ``receiving`` or ``running``.
        sentence: the same for people.
        seconds: since it was submitted.
        prompt_tokens: length of its prompt.
        generated: tokens so far.
        priority: of the request.
    """

    request_id: str
    state: str
    sentence: str
    seconds: float
    prompt_tokens: int
    generated: int
    priority: int


@dataclass(frozen=True)
class Place:
    """What the batch's books say of a request.

    Attributes:
        ahead: requests that get blocks before it; None if it waits for none.
        wanted: blocks that it waits for, or has.
        free: blocks that nobody has.
        runs: it takes part in steps.
    """

    ahead: int | None
    wanted: int
    free: int
    runs: bool


def whereabouts(decoding: DecodingRequest, place: Place, now: float) -> Whereabouts:
    """Where a live request is, at ``now`` in monotonic seconds."""
    state, sentence = _found(decoding, place)
    return Whereabouts(
        request_id=decoding.request_id,
        state=state,
        sentence=sentence,
        seconds=now - decoding.submitted,
        prompt_tokens=decoding.request.prompt_tokens,
        generated=len(decoding.sequence.generated),
        priority=decoding.request.priority,
    )


def _found(decoding: DecodingRequest, place: Place) -> tuple[str, str]:
    request, sequence = decoding.request, decoding.sequence
    so_far = f"{len(sequence.generated):,} of at most {request.max_tokens:,} tokens"
    if place.ahead is not None:
        blocks = f"{place.wanted:,} blocks of KV, of which {place.free:,} are free"
        waits = f"waits for {blocks}, behind {place.ahead:,} other{'' if place.ahead == 1 else 's'}"
        if sequence.generated:
            return "preempted", f"was preempted after {so_far}, and {waits}"
        return "waiting", waits
    if place.runs:
        if decoding.logits is not None:
            return "running", f"has {so_far}, and waits for what its grammar lets follow"
        if not sequence.generated:
            return (
                "running",
                f"has {sequence.computed:,} tokens of its prompt computed here, of {request.prompt_tokens:,}",
            )
        return "running", f"has {so_far}"
    if place.wanted:
        return (
            "receiving",
            f"has {place.wanted:,} blocks, and waits for the KV of its prompt and its first token",
        )
    if request.grammar is not None and sequence.guide is None:
        return "arriving", "waits for what its answer must match to be compiled"
    if request.handoff is None:
        return "arriving", "is about to ask for blocks"
    return "arriving", f"waits for a prefill worker to offer its KV (bootstrap_room {request.handoff.room})"
