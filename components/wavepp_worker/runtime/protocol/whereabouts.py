"""Where requests are: what rank 0's threads know of each, and what an engine makes of it. Frozen and typed."""

from __future__ import annotations

from typing import Literal

import msgspec

QueuedBecause = Literal[
    "announcing", "looking up", "places", "room", "other rank", "writer", "ahead", "round"
]
"""What a queued request waits for, see ``Queued``."""


class Queued(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request that is not admitted and that no round prepares.

    Attributes:
        seconds: since rank 0 took it.
        because: ``announcing``: for the next round, in which all ranks hear of it; ``looking up``: for the first
            look-up of its prefix; ``places``: ``max_num_seqs`` requests hold leases; ``room``: rank 0 has less than it
            needs; ``other rank``: another rank had; ``writer``: one that is being prepared computes its prefix;
            ``ahead``: others are before it; ``round``: for nothing but the next round.
        ahead: requests that wait and are before it in first-come order.
        higher: of these, of a higher priority.
        order: ``fcfs`` or ``prefix``.
        needs: tokens of room that it takes, as far as is known.
        room: tokens that could be reserved on rank 0.
        holding: requests that hold a lease or are being prepared.
        limit: most of them.
        writer: the request that computes its prefix.
        first: the first that waits.
        passed: tokens that requests compute which came later and were prepared before it.
    """

    request_id: str
    seconds: float
    because: QueuedBecause
    ahead: int = 0
    higher: int = 0
    priority: int = 0
    order: str = "fcfs"
    needs: int = 0
    room: int = 0
    holding: int = 0
    limit: int = 0
    writer: str = ""
    first: str = ""
    passed: int = 0


class Preparing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request for which the ranks are asked for lease and room.

    Attributes:
        seconds: since it was first prepared.
        endpoint: tokens that it would reuse.
        lowered: some rank had less of its prefix than was believed: it is asked for again, at ``endpoint``.
        writer: the request that computes what it reuses; empty if nobody does.
    """

    request_id: str
    seconds: float
    endpoint: int
    lowered: bool = False
    writer: str = ""


class Running(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request that all ranks have admitted and that is not over on rank 0.

    Attributes:
        writer: the request that computes what it reuses, until its blocks are its own; empty if nobody does.
    """

    request_id: str
    writer: str = ""


class InLanes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request's share of the waves.

    Attributes:
        place: among the lanes, from 1; 0 if all of it is in waves.
        lanes: how many there are.
        next: first token that no wave carries yet.
        end: where it ends.
        after: the request whose chunks before ``next`` have to be in waves first; empty if it can go on.
        after_tokens: how many of its tokens have to.
        waves: of those in flight, which carry it, the oldest of all being 1.
        wave_ids: their ids.
    """

    request_id: str
    place: int
    lanes: int
    next: int
    end: int
    after: str = ""
    after_tokens: int = 0
    waves: tuple[int, ...] = ()
    wave_ids: tuple[int, ...] = ()


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request of an engine is.

    Attributes:
        request_id: of its caller.
        state: ``queued``, ``no room``, ``preparing``, ``reading`` (from blocks that another computes), ``admitted``,
            ``computing`` (in waves), ``answering``, ``holding`` (for a decode worker), ``leaving`` (given up, and not
            let go of by all ranks), ``over``, ``unknown``, or ``not heard`` if rank 0 does not answer in time.
        sentence: the same for people.
        seconds: since it was submitted.
        since: seconds in this state, as far as is known.
        ranks: where, or who is waited for.
        prompt_tokens: length of its prompt; 0 if unknown.
        priority: of the request.
        admission: what rank 0's WAVE thread knows.
        lane: what its LOOP thread knows.
    """

    request_id: str
    state: str
    sentence: str
    seconds: float = 0.0
    since: float = 0.0
    ranks: tuple[int, ...] = ()
    prompt_tokens: int = 0
    priority: int = 0
    admission: Queued | Preparing | Running | None = None
    lane: InLanes | None = None
