"""What the answer to a request is worth. Pure."""

from __future__ import annotations

from enum import Enum

import msgspec

from tests.chaos.workload import Ask, Manner


class Reply(msgspec.Struct, frozen=True):
    """What a client got.

    Attributes:
        number: of the request.
        began: when it was sent, in seconds after the load began.
        ended: when its answer or its error was complete.
        status: of HTTP; 0 if there was none.
        text: of the answer, as far as it came.
        finishes: reasons to finish, in the order in which they came.
        done: a stream said that it is over, or a whole answer was complete.
        error: the sentence of an error.
        broken: how the connection ended early; empty if it did not.
        left: the client went away before there was an answer.
        late: the client's bound passed.
    """

    number: int
    began: float
    ended: float
    status: int = 0
    text: str = ""
    finishes: list[str] = []
    done: bool = False
    error: str = ""
    broken: str = ""
    left: bool = False
    late: bool = False


class Verdict(str, Enum):
    """The outcome of one request."""

    RIGHT = "right answer"
    REFUSED = "refused, as it is invalid"
    LEFT = "client left"
    ERROR = "clear error"
    BROKEN = "connection broken"
    WRONG = "WRONG ANSWER"
    ACCEPTED = "INVALID BUT ANSWERED"
    UNCLEAR = "ERROR WITHOUT A SENTENCE"
    BOTH = "ANSWER AND ERROR"
    LATE = "NO ANSWER IN TIME"


FAILURES = frozenset({Verdict.WRONG, Verdict.ACCEPTED, Verdict.UNCLEAR, Verdict.BOTH, Verdict.LATE})
"""What must never happen."""
TROUBLE = frozenset({Verdict.ERROR, Verdict.BROKEN})
"""What a fault has to explain. A frontend that is killed can say nothing: its connections break."""


def judge(ask: Ask, reply: Reply) -> Verdict:
    """The outcome of ``ask``; whatever text came has to be the beginning of the right one."""
    if reply.late:
        return Verdict.LATE
    if not ask.text.startswith(reply.text):
        return Verdict.WRONG
    if reply.left:
        return Verdict.LEFT
    if reply.broken:
        return Verdict.BROKEN
    if reply.error and reply.finishes:
        return Verdict.BOTH
    if reply.error:
        # What is invalid is refused as such, or not looked at because nobody is there.
        refused = ask.manner is Manner.INVALID and 400 <= reply.status < 500
        return Verdict.REFUSED if refused else Verdict.ERROR
    if reply.status != 200:
        return Verdict.UNCLEAR
    if ask.manner is Manner.INVALID:
        return Verdict.ACCEPTED
    if not reply.done:
        return Verdict.UNCLEAR
    right = reply.text == ask.text and reply.finishes == ["length"]
    return Verdict.RIGHT if right else Verdict.WRONG
