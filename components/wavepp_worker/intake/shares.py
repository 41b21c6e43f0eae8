"""How many jobs to ask for, and of whose. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Shares(NamedTuple):
    """Jobs to ask for: of those that address this replica, and of those for anybody."""

    own: int
    anybodys: int


def shares(room: int, turn: int) -> Shares:
    """Divide ``room`` for further jobs between two requests that wait at the server at the same time.

    Jobs that address this replica come one at a time, each asked for at once after the one before. If there is room
    for a single one, the two take turns.
    """
    if room <= 0:
        return Shares(0, 0)
    if room == 1:
        return Shares(1, 0) if turn % 2 else Shares(0, 1)
    return Shares(1, room - 1)


def room_for(ahead: int, waiting: int, queued: int, held: int, texts: int = 0) -> int:
    """How many jobs more this replica admits soon.

    Texts wait long for their tokens, one after the other, while the engine may have nothing to do: so ``ahead`` of them
    take nobody's room.

    Args:
        ahead: most that may wait for admission.
        waiting: jobs that were taken and are not admitted.
        queued: requests of the engine that are not admitted, as it last said.
        held: jobs that were taken and are not over; what else the engine has queued is others'.
        texts: of those that wait, those whose text is not made into tokens yet.
    """
    return max(0, ahead - (waiting - min(texts, ahead)) - max(0, queued - held))
