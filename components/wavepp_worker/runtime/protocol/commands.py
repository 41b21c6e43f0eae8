"""Commands: what the engine client asks of rank 0."""

from __future__ import annotations

from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.requests import PrefillRequest


class Submit(Message, frozen=True):
    """Engine to rank 0: a validated request.

    Attributes:
        keys: packed keys of the prompt's full blocks, see ``block_keys``.
    """

    request: PrefillRequest
    keys: bytes


class Abort(Message, frozen=True):
    """Engine to rank 0: let go of a request in whatever state it is; unknown ids are ignored."""

    request_id: str


class Audit(Message, frozen=True):
    """Engine to rank 0: every rank shall report its books."""

    audit_id: int


class Clear(Message, frozen=True):
    """Engine to rank 0: in one round, every rank shall forget all that can be reused and that nobody holds."""

    clear_id: int


class Dump(Message, frozen=True):
    """Engine to rank 0, and from there to all others at once: every rank shall say what it holds; changes nothing."""

    dump_id: int


class StartProfile(Message, frozen=True):
    """Engine to rank 0: every rank shall record what it does, for so many seconds at most.

    Attributes:
        directory: rank n writes to the file ``n`` there.
    """

    profile_id: int
    directory: str
    seconds: float


class StopProfile(Message, frozen=True):
    """Engine to rank 0: every rank shall end its recording."""

    profile_id: int


RankTask = Audit | Clear | StartProfile | StopProfile
"""What every rank does once, in the same round, and reports to the engine by itself."""


class Explain(Message, frozen=True):
    """Engine to rank 0: where are these requests? Changes nothing; its two threads answer each for itself."""

    question_id: int
    request_ids: tuple[str, ...]


class Stop(Message, frozen=True):
    """Engine to rank 0: all ranks leave."""


Command = Submit | Abort | RankTask | Dump | Explain | Stop
