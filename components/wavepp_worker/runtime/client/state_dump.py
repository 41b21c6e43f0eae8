"""The state of an engine as one JSON object, for people who look for a fault. It has no prompt, and is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from wavepp_worker.runtime.client.whereabouts import Heard
from wavepp_worker.runtime.protocol.load import EngineStats
from wavepp_worker.runtime.protocol.rank_state import RankState
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts


def state_dump(
    stats: EngineStats,
    live: int,
    found: Sequence[Whereabouts],
    heard: Heard,
    states: Sequence[RankState],
    ranks: int,
    name: Callable[[str], str | None],
) -> dict[str, Any]:
    """What is known of an engine, also if only some of its ranks say something.

    Args:
        stats: its load.
        live: requests that are not over.
        found: where the first of them are.
        heard: what rank 0's threads said.
        states: what ranks said, in their order.
        ranks: how many there are.
        name: what callers call a request that ranks know under an id of its own; None if it is over.
    """
    admission, lanes = heard.admission, heard.lanes
    heard_of = {state.rank for state in states}
    return {
        "stats": msgspec.to_builtins(stats),
        "live": live,
        "requests": msgspec.to_builtins(list(found)),
        "round": None
        if admission is None
        else {"open": admission.round_id, "missing_votes": list(admission.missing)},
        "lanes": None
        if lanes is None
        else {"in_flight": lanes.in_flight, "ring": lanes.ring, "on_device": lanes.on_device},
        "ranks": [_rank(state, name) for state in states],
        "silent_ranks": [rank for rank in range(ranks) if rank not in heard_of],
    }


def _rank(state: RankState, name: Callable[[str], str | None]) -> dict[str, Any]:
    told = msgspec.to_builtins(state)
    del told["type"], told["dump_id"]
    told["tiers"] = dict(zip(("device", "host", "disk"), told["tiers"], strict=False))
    for request in told["requests"]:
        request["request_id"] = name(request["request_id"]) or request["request_id"]
    return told
