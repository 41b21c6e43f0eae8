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


class Explain(Message, frozen=True):
    """Engine to rank 0: where are these requests? Changes nothing; its two threads answer each for itself."""

    question_id: int
    request_ids: tuple[str, ...]


class Stop(Message, frozen=True):
    """Engine to rank 0: all ranks leave."""


Command = Submit | Abort | Audit | Explain | Stop
