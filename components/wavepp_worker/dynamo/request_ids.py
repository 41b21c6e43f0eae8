"""What a user calls a request: the id of an answer, of a header, or of a log line. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence

from wavepp_worker.runtime.protocol.requests import Timings
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts

_ANSWERS = re.compile(r"^(chatcmpl|cmpl|resp|msg)[-_](?=.)")
"""What Dynamo's frontend puts before a request's id, to make the id of an answer of it."""


def possible_ids(given: str) -> tuple[str, ...]:
    """The ids that workers may know a request by, what was given first.

    >>> possible_ids("chatcmpl-1D3F5A70-0000-4000-8000-000000000001")[-1]
    '1d3f5a70-0000-4000-8000-000000000001'
    """
    given = given.strip()
    bare = _ANSWERS.sub("", given)
    try:
        # Frontends take an id in any of its spellings, and go on with this one.
        return tuple(dict.fromkeys((given, bare, str(uuid.UUID(bare)))))
    except ValueError:
        return tuple(dict.fromkeys((given, bare)))


def ended_or_unknown(ids: Sequence[str], timing: Callable[[str], Timings | None]) -> Whereabouts:
    """What is said of a request that the engine does not have under any of these ids.

    Args:
        timing: of the prefill of a request, if that is one of the latest that finished.
    """
    ended = ((each, timings) for each in ids if (timings := timing(each)) is not None)
    request_id, timings = next(ended, (ids[-1], None))
    if timings is None:
        return Whereabouts(
            request_id=request_id,
            state="unknown",
            sentence="is not here: it is over, not here yet, or was never sent to this replica",
        )
    parts = f"queued {timings.queued:.3f} s, admission {timings.admission:.3f} s, execution {timings.execution:.3f} s"
    return Whereabouts(
        request_id=request_id,
        state="over",
        sentence=f"is prefilled, which took {timings.total:.3f} s ({parts}), and holds nothing here any more",
        seconds=timings.total,
    )
