"""What a rank says of itself when an operator looks for a fault."""

from __future__ import annotations

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.runtime.protocol.rank_state import MOST_REQUESTS, LocalState, RankState
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest, RequestTable


def rank_state(dump_id: int, requests: RequestTable, cache: RankCache, reports: RankReports) -> RankState:
    """What a rank holds at this moment. Called by the WAVE thread; the LOOP thread goes on meanwhile."""
    ids, escrows = requests.ids(), cache.escrows()
    local = (requests.get(request_id) for request_id in ids[:MOST_REQUESTS])
    return RankState(
        dump_id=dump_id,
        rank=reports.rank,
        known=len(ids),
        requests=tuple(_local_state(each, cache) for each in local if each is not None),
        use=cache.use(),
        escrows=escrows,
        tiers=cache.tiers(),
        waves=reports.waves,
        busy=reports.busy,
    )


def _local_state(local: LocalRequest, cache: RankCache) -> LocalState:
    request = local.request
    return LocalState(
        request_id=request.request_id,
        prompt_tokens=request.prompt_tokens,
        endpoint=local.endpoint,
        position=local.position,
        executed=local.executed,
        settled=local.settled,
        handoff=request.handoff,
        holding=cache.holding(request.request_id),
    )
