"""Discovery and admission in rounds between real processes."""

from __future__ import annotations

import time

from wavepp_worker.runtime.admission.queue import AdmissionQueue
from wavepp_worker.runtime.admission.round_planner import RoundPlanner
from wavepp_worker.runtime.protocol.lane_events import LaneEnded, LaneMaterialised, LaneScheduled
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.rounds import Plan

from bench.admission.cached_rank import WAIT
from bench.admission.ranks import Ranks
from bench.admission.samples import Samples, timed

BURSTS = 8
"""How often as many requests as wait arrive at once."""


def measure_discovery(
    ranks: Ranks, name: str, prompts: list[bytes], concurrency: int, samples: Samples
) -> None:
    """Arrivals one after the other while ``concurrency`` wait, then as many at once.

    One is discovered once its candidate is agreed: its keys are made and sent, looked up, and votes gathered.
    """
    requests = [PrefillRequest(request_id=f"{name}-{at}", tokens=tokens) for at, tokens in enumerate(prompts)]
    ids = [request.request_id for request in requests]

    def discover(arriving: list[PrefillRequest], release: tuple[str, ...]) -> None:
        arrivals = tuple(ranks.arrival(request) for request in arriving)
        hint = tuple(request.request_id for request in arriving)
        ranks.run(Plan(round_id=0, arrivals=arrivals, release=release, hint=hint))

    for at, request in enumerate(requests):
        leaving = tuple(ids[max(0, at - concurrency) : max(0, at - concurrency + 1)])
        timed(samples[f"discovery: {name}"], discover, [request], leaving)
        plan = Plan(round_id=0, hint=(ids[at],))
        timed(samples[f"round that looks one up again: {name}"], ranks.run, plan)
    gone = tuple(ids)
    for _ in range(BURSTS):
        ranks.run(Plan(round_id=0, release=gone))
        gone = tuple(ids[-concurrency:])
        timed(
            samples[f"discovery of {concurrency} arrivals at once: {name}"],
            discover,
            requests[-concurrency:],
            (),
        )
    ranks.run(Plan(round_id=0, release=gone))


def measure_closed_loop(
    ranks: Ranks, name: str, prompts: list[bytes], concurrency: int, batch: int, samples: Samples
) -> float:
    """Run all prompts, ``concurrency`` waiting or running at a time; returns rounds per admitted request."""
    planner = RoundPlanner(AdmissionQueue(batch), leases=True)
    first, deadline = ranks.rounds, time.perf_counter() + WAIT
    pending = [PrefillRequest(request_id=f"loop-{at}", tokens=tokens) for at, tokens in enumerate(prompts)]
    submitted: dict[str, float] = {}
    ended = 0
    while ended < len(prompts):
        now = time.perf_counter()
        if now > deadline:
            raise TimeoutError(f"{len(prompts) - ended} requests have not ended after {WAIT:.0f} s")
        while ranks.rank.ended:
            ended += 1
            request_id = ranks.rank.ended.popleft()
            planner.lane_progressed(LaneMaterialised(request_id))
            planner.lane_progressed(LaneScheduled(request_id))
            planner.lane_progressed(LaneEnded(request_id, aborted=False))
        if pending and len(submitted) - ended < concurrency:
            request = pending.pop()
            submitted[request.request_id] = now
            planner.submit(ranks.arrival(request), now)
        plan = planner.next_plan(now) if planner.due(now) <= now else None
        if plan is None:
            time.sleep(0.0002)
            continue
        outcome = ranks.run(plan)
        now = time.perf_counter()
        planner.apply(plan, outcome, now)
        for arrival in plan.arrivals:
            samples[f"discovery between admissions: {name}"].append(now - submitted[arrival.request_id])
    return (ranks.rounds - first) / len(prompts)
