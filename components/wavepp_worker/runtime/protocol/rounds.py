"""The rounds plane, rank 0 with every other rank: a plan, votes on it, the tally of all, and dumps at any time."""

from __future__ import annotations

import msgspec

from wavepp_worker.runtime.protocol.commands import Dump, RankTask
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.requests import Arrival


class Admit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and an endpoint (tokens): to prepare no further than there, to commit there, or agreed on.

    Attributes:
        writer: an admitted request that computes what is not reusable before the endpoint; empty for none.
        branches: endpoints (tokens) at which others will resume: those that wait, the most wanted first, and whoever
            goes on where it ends.
    """

    request_id: str
    endpoint: int
    writer: str = ""
    branches: tuple[int, ...] = ()


class Plan(Message, frozen=True, omit_defaults=True):
    """Rank 0 to all: what to do in this round; ``RoundActions.vote`` has the order.

    Attributes:
        arrivals: requests every rank shall know from now on.
        release: requests every rank lets go of, whatever their state.
        hint: requests whose local reuse endpoint the vote shall carry.
        prepare: requests to lease and reserve for, in the order of their admission; the vote carries a claim each.
        exempt: the only request of ``prepare`` may ignore the headroom, as no other holds a lease.
        reconcile: requests to commit at a lower endpoint; the vote carries a claim each.
        tasks: what every rank does once, in this order, after what the round lets go of and before it prepares.
        stop: every rank leaves after this round.
    """

    round_id: int
    arrivals: tuple[Arrival, ...] = ()
    release: tuple[str, ...] = ()
    hint: tuple[str, ...] = ()
    prepare: tuple[Admit, ...] = ()
    exempt: bool = False
    reconcile: tuple[Admit, ...] = ()
    tasks: tuple[RankTask, ...] = ()
    stop: bool = False


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What one rank could do for one request.

    Attributes:
        endpoint: tokens it has pinned, or -1 if it has no room and holds nothing new.
        committed: it holds the room for everything after ``endpoint``, too.
    """

    endpoint: int
    committed: bool


class Vote(Message, frozen=True, omit_defaults=True):
    """One rank's local facts for one round; decides nothing by itself.

    Attributes:
        endpoints: tokens, for each of the plan's ``hint``.
        claims: for each of the plan's ``prepare``, then of its ``reconcile``.
    """

    round_id: int
    rank: int
    endpoints: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()


class Tally(Message, frozen=True):
    """Rank 0 to all: every rank's vote of the round, in rank order. Each rank computes the outcome."""

    round_id: int
    votes: tuple[Vote, ...]


RoundMessage = Plan | Vote | Tally | Dump
