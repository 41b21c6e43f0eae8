"""What a rank consists of beside its sockets, threads and device; built the same wherever a rank runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.runtime.admission.actions import LockstepActions, RoundActions
from wavepp_worker.runtime.admission.ownership import ImmediateOwnership, LeaseOwnership, Ownership
from wavepp_worker.runtime.admission.wave_gate import Gate
from wavepp_worker.runtime.rank.execution_order import ExecutionOrder
from wavepp_worker.runtime.state.lifecycle import RequestLifecycle, Tiers
from wavepp_worker.runtime.state.reports import EventSink, RankReports
from wavepp_worker.runtime.state.request_table import RequestTable
from wavepp_worker.runtime.tiers.block_origins import BlockOrigins
from wavepp_worker.runtime.trace.recorder import Recorder
from wavepp_worker.runtime.trace.timeline import OFF, Timeline


@dataclass(frozen=True)
class RankParts:
    """What the two threads of a rank share, and ``actions`` (WAVE alone) and ``order`` (LOOP alone)."""

    requests: RequestTable
    cache: RankCache
    reports: RankReports
    lifecycle: RequestLifecycle
    actions: RoundActions
    order: ExecutionOrder


def make_parts(
    cache: RankCache,
    tiers: Tiers,
    events: EventSink,
    *,
    rank: int,
    headroom_blocks: int,
    leases: bool,
    origins: BlockOrigins | None = None,
    gate: Gate | None = None,
    timeline: Timeline = OFF,
    recorder: Recorder | None = None,
) -> RankParts:
    """Put a rank together.

    Args:
        headroom_blocks: blocks that preparing a request leaves to others.
        leases: whether a request holds a lease and an escrow until it runs, or its blocks from admission on.
        origins: where to keep what the reusable blocks are of; None for nowhere.
        recorder: switches ``timeline`` on and off; None for one that records elsewhere.
        gate: where admission parks execution, in lockstep; None for admission beside it.
    """
    requests = RequestTable()
    reports = RankReports(rank=rank, events=events, requests=requests, cache=cache, origins=origins)
    lifecycle = RequestLifecycle(
        requests=requests,
        cache=cache,
        tiers=tiers,
        reports=reports,
        timeline=timeline,
    )
    own: Callable[..., Ownership] = LeaseOwnership if leases else ImmediateOwnership
    make: Callable[..., RoundActions] = RoundActions if gate is None else partial(LockstepActions, gate=gate)
    actions = make(
        rank=rank,
        headroom_blocks=headroom_blocks,
        requests=requests,
        lifecycle=lifecycle,
        cache=cache,
        ownership=own(requests, cache, lifecycle),
        reports=reports,
        timeline=timeline,
        recorder=recorder or Recorder(),
    )
    order = ExecutionOrder(requests, lifecycle, reports)
    return RankParts(requests, cache, reports, lifecycle, actions, order)
