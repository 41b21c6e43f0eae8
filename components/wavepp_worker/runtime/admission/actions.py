"""What one rank does in a round: act on the plan, vote, and apply the outcome once the votes are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.runtime.admission.outcome import RoundOutcome, decide
from wavepp_worker.runtime.admission.ownership import Ownership
from wavepp_worker.runtime.admission.wave_gate import Gate
from wavepp_worker.runtime.protocol.commands import Audit, Clear, Dump, RankTask, StartProfile, StopProfile
from wavepp_worker.runtime.protocol.events import ProfileChanged
from wavepp_worker.runtime.protocol.rounds import Plan, Tally, Vote
from wavepp_worker.runtime.state.lifecycle import RequestLifecycle
from wavepp_worker.runtime.state.rank_dump import rank_state
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import RequestTable
from wavepp_worker.runtime.trace.recorder import Recorder
from wavepp_worker.runtime.trace.timeline import NOTHING, Named, Timeline


@dataclass(kw_only=True)
class RoundActions:
    """Wave admission (paper, section 4.2): beside execution, which it never stops. Used by the WAVE thread.

    Attributes:
        rank: this rank's number.
        headroom_blocks: blocks that preparing a request leaves to others.
        recorder: of the timeline.
    """

    rank: int
    headroom_blocks: int
    requests: RequestTable
    lifecycle: RequestLifecycle
    cache: RankCache
    ownership: Ownership
    reports: RankReports
    timeline: Timeline
    recorder: Recorder
    _begun: int = field(default=0, init=False)
    _voted: int = field(default=0, init=False)
    _asked_for: bool = field(default=False, init=False)

    def vote(self, plan: Plan) -> Vote:
        """Do what ``plan`` says on this rank and report the local facts."""
        self._begun = self.timeline.now()
        with self._part("announce", plan.arrivals):
            for request in plan.arrivals:
                self.lifecycle.announce(request)
        # Before some of them are let go of.
        self._asked_for = self.requests.asked_for(_named(plan))
        with self._part("let go", plan.release):
            for request_id in plan.release:
                self.lifecycle.let_go(request_id)
        for task in plan.tasks:
            self._do(task)
        headroom = 0 if plan.exempt else self.headroom_blocks
        with self._part("prepare", plan.prepare):
            claims = self.ownership.prepare(plan.prepare, headroom)
        with self._part("reconcile", plan.reconcile):
            claims += [self.ownership.reconcile(admit) for admit in plan.reconcile]
        with self._part("hint", plan.hint):
            endpoints = tuple(self._endpoint(request_id) for request_id in plan.hint)
        self._voted = self.timeline.now()
        return Vote(round_id=plan.round_id, rank=self.rank, endpoints=endpoints, claims=tuple(claims))

    def dump(self, dump: Dump) -> None:
        """Tell the engine what this rank holds; at any time, also between a vote and its outcome."""
        self.reports.send(rank_state(dump.dump_id, self.requests, self.cache, self.reports))

    def _do(self, task: RankTask) -> None:
        match task:
            case Audit():
                self.reports.audit(task.audit_id)
            case StartProfile():
                error = ""
                try:
                    self.recorder.start(Path(task.directory) / str(self.rank), task.seconds)
                except (OSError, ValueError) as failure:
                    error = str(failure)
                self.reports.send(ProfileChanged(profile_id=task.profile_id, rank=self.rank, error=error))
            case StopProfile():
                self.recorder.stop()
                self.reports.send(ProfileChanged(profile_id=task.profile_id, rank=self.rank))
            case Clear():
                with self.timeline.span("admission", "clear"):
                    self.lifecycle.clear(task.clear_id)

    def apply(self, plan: Plan, tally: Tally) -> RoundOutcome:
        """Carry out the outcome, the same on every rank."""
        self.timeline.record("admission", "wait for votes", self._voted, self.timeline.now())
        outcome = decide(plan, tally.votes)
        with self._part("apply", (*outcome.admitted, *outcome.failed)):
            for admit in outcome.admitted:
                self.ownership.admitted(admit)
            for request_id in outcome.failed:
                self.ownership.failed(request_id)
        self.timeline.record("admission", f"round {plan.round_id}", self._begun, self.timeline.now())
        if self._asked_for:
            self.reports.round_applied()
        return outcome

    def _part(self, name: str, requests: Sequence[str | Named]) -> AbstractContextManager[None]:
        return self.timeline.span("admission", name, requests=requests) if requests else NOTHING

    def _endpoint(self, request_id: str) -> int:
        local = self.requests.known(request_id)
        return self.cache.hint(local.keys, local.request.prompt_tokens)


def _named(plan: Plan) -> Iterator[str]:
    """The requests that a plan is about."""
    yield from (request.request_id for request in plan.arrivals)
    yield from (admit.request_id for admit in (*plan.prepare, *plan.reconcile))
    yield from (*plan.hint, *plan.release)


@dataclass(kw_only=True)
class LockstepActions(RoundActions):
    """The paper's minimum implementation (section 4.1): executors pause from the look-up to the allocation.

    A round that looks prefixes up parks every executor at its ``WaveGate``, and walks the tree itself;
    the next one allocates at the common endpoint and lets the executors go on.
    """

    gate: Gate
    _parked: bool = field(default=False, init=False)
    _parked_at: int = field(default=0, init=False)

    def vote(self, plan: Plan) -> Vote:
        if plan.hint and not self._parked:
            with self.timeline.span("admission", "park"):
                self.gate.park()
            self._parked = True
            self._parked_at = self.timeline.now()
        return super().vote(plan)

    def apply(self, plan: Plan, tally: Tally) -> RoundOutcome:
        outcome = super().apply(plan, tally)
        if self._parked and not plan.hint and not outcome.lower:
            self.gate.resume()
            self._parked = False
            self.timeline.record("parked", "parked", self._parked_at, self.timeline.now())
        return outcome

    def _endpoint(self, request_id: str) -> int:
        local = self.requests.known(request_id)
        return self.cache.match(local.keys, local.request.prompt_tokens)
