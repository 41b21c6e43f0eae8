"""Why a request waits in the queue, in one sentence. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.client.words import duration, requests, tokens
from wavepp_worker.runtime.protocol.whereabouts import Queued


def queued_sentence(queued: Queued) -> tuple[str, str]:
    """The state and the sentence."""
    since = f"for {duration(queued.seconds)}"
    needs, room = tokens(queued.needs), tokens(queued.room)
    place = _place(queued, since)
    match queued.because:
        case "announcing":
            behind = f" behind {requests(queued.ahead)}" if queued.ahead else ""
            return "queued", f"is queued, {since},{behind} and is announced to all ranks with the next round"
        case "places":
            text = (
                f"{place}: all {queued.limit} places (max_num_seqs) are taken by requests that hold a lease"
            )
            return "queued", text
        case "ahead":
            return "queued", f"{place}; the first of them is {queued.first}"
        case "room":
            return (
                "no room",
                f"{place}, and has no room: it needs {needs}, and {room} can be reserved on rank 0",
            )
        case "other rank":
            return (
                "no room",
                f"{place}, and has no room: another rank than 0 had none for the {needs} that it needs",
            )
        case "writer":
            text = (
                f"waits, {since}, for request {queued.writer}, which is being prepared and computes what its prompt "
                "begins with"
            )
            return "queued", text
        case "looking up":
            return "queued", f"{place}: all ranks look its prefix up in the next round"
        case "round":
            return "queued", f"{place}, and fits: it is asked for with the next round{_unless(queued)}"


def _place(queued: Queued, since: str) -> str:
    if not queued.ahead:
        return f"is first in the queue, {since}"
    higher = ""
    if queued.higher:
        higher = f"{queued.higher:,} of them of a higher priority than its {queued.priority}, "
    return f"is queued, {since}, behind {requests(queued.ahead)} ({higher}{_order(queued)})"


def _order(queued: Queued) -> str:
    if queued.order == "fcfs":
        return "first come, first served"
    passed = f"; those that passed it compute {tokens(queued.passed)}" if queued.passed else ""
    return f"order=prefix: while not all fit, those that compute least come first{passed}"


def _unless(queued: Queued) -> str:
    return "" if queued.order == "fcfs" else ", unless others that compute less come first (order=prefix)"
