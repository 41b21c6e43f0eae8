"""The state of an engine of which not everybody says something."""

from __future__ import annotations

import json

from wavepp_worker.cache.results import CacheUse, EscrowSums, TierFigures
from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.client.state_dump import state_dump
from wavepp_worker.runtime.client.stats import engine_stats
from wavepp_worker.runtime.client.whereabouts import Heard
from wavepp_worker.runtime.protocol.events import AdmissionExplained, LanesExplained
from wavepp_worker.runtime.protocol.rank_state import LocalState, RankState


def test_what_is_known_is_said_under_the_names_that_callers_know() -> None:
    request = LocalState(
        request_id="a-17", prompt_tokens=9, endpoint=None, position=0, executed=False, settled=False,
        handoff=False, holding=None,
    )  # fmt: skip
    rank = RankState(
        dump_id=1, rank=1, known=2, requests=(request,), use=CacheUse(8, 8, 0, 0, 0), escrows=EscrowSums(0, 0, 0),
        tiers=(TierFigures(8, 0), TierFigures(0, 0), TierFigures(0, 0)), waves=3, busy=0.5,
    )  # fmt: skip
    heard = Heard(
        AdmissionExplained(question_id=1, requests=(), round_id=4, missing=(2,)),
        LanesExplained(question_id=1, requests=(), in_flight=2, ring=6),
    )
    stats = engine_stats(RequestLedger(3), [], 8)
    told = json.loads(json.dumps(state_dump(stats, 1, [], heard, [rank], 3, {"a-17": "a"}.get)))
    assert told["round"] == {"open": 4, "missing_votes": [2]}
    assert told["lanes"] == {"in_flight": 2, "ring": 6, "on_device": 0}
    assert told["silent_ranks"] == [0, 2]
    assert told["ranks"][0]["requests"][0]["request_id"] == "a"
    assert told["ranks"][0]["tiers"]["device"]["capacity"] == 8
    silent = state_dump(stats, 0, [], Heard(), [], 1, {}.get)
    assert (silent["round"], silent["lanes"], silent["ranks"], silent["silent_ranks"]) == (
        None,
        None,
        [],
        [0],
    )
