"""``python -m tests.simulator.mutants``: mistakes planted in production code, and the schedules that show each."""

from __future__ import annotations

import logging
import multiprocessing
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.simulator.mutation import Mutant
from tests.simulator.search import keep_imports

SEEDS = 10_000
"""Schedules within which each is caught."""

ADMISSION, RANK, PLANNING = "runtime.admission", "runtime.rank", "runtime.planning"
LOCKSTEP = {"admission": "lockstep", "ownership": "none"}

MUTANTS = (
    Mutant(
        "leader: an abort of an admitted request goes nowhere",
        f"{ADMISSION}.round_planner",
        "RoundPlanner.abort",
        "self._aborted.append(LaneAborted(request_id, self._queue.abort(request_id)))",
        "pass",
    ),
    Mutant(
        "LOOP: a wave does not wait for what other tiers had of its blocks",
        "runtime.state.lifecycle",
        "RequestLifecycle.wave_begins",
        "self._tiers.follow(",
        "(",
    ),
    Mutant(
        "LOOP: a request waits for moves only if some were its own",
        "runtime.state.lifecycle",
        "RequestLifecycle.take_blocks",
        "self._wait_for_runs(local, window, table)",
        "self._wait_for_runs(local, window, table if claimed.moves else ())",
    ),
    Mutant(
        "LOOP: a request waits for no moves of the snapshot that it resumes from",
        "runtime.state.lifecycle",
        "RequestLifecycle.take_blocks",
        "(claimed.states, claimed.resume)",
        "(claimed.states,)",
    ),
    Mutant(
        "LOOP: a chunk waits for no moves that made room for its snapshots",
        "runtime.state.lifecycle",
        "RequestLifecycle.chunk_begins",
        "self._wait_for_runs(local, window, tuple(snapshots.values()))",
        "pass",
    ),
    Mutant(
        "LOOP: a chunk waits for no moves that made room for it",
        "runtime.state.lifecycle",
        "RequestLifecycle.chunk_begins",
        "self._wait_for_runs(local, window, blocks)",
        "pass",
    ),
    Mutant(
        "lanes: who reads what another computes does not wait for it",
        f"{PLANNING}.lanes",
        "Lanes._readable",
        "if writer is not None and writer.next < lane.next:",
        "if False:",
    ),
    Mutant(
        "lanes: a reader waits for the writer's first wave only",
        f"{PLANNING}.lanes",
        "Lanes._readable",
        "writer.next < lane.next",
        "not writer.next",
    ),
    Mutant(
        "lanes: a request without an owner ends at once, whoever reads from it",
        f"{PLANNING}.lanes",
        "Lanes.take",
        "lane.next < event.until",
        "lane.next < 0",
        late=True,
    ),
    Mutant(
        "lanes: a request without an owner ends as if its prompt did",
        f"{PLANNING}.lanes",
        "Lanes.take",
        "lane.whole = lane.whole and event.until == lane.end",
        "pass",
        late=True,
    ),
    Mutant(
        "in the making: the readers of a request without an owner are forgotten",
        f"{ADMISSION}.in_the_making",
        "InTheMaking.aborted",
        "return writer.end",
        "return 0",
        late=True,
    ),
    Mutant(
        "readers: get a block before it is computed",
        "cache.readers",
        "Readers.computed",
        "<= writer.computed:",
        "<= writer.computed + 1:",
    ),
    Mutant(
        "readers: ask for a snapshot within a chunk that has begun",
        "cache.readers",
        "Readers._ahead",
        "held.begun < limit * self._block",
        "True",
    ),
    Mutant(
        "recurrent: a chunk leaves out the snapshots that were asked for",
        "cache.windows.recurrent",
        "RecurrentWindow.begin",
        "if due:",
        "if False:",
    ),
    Mutant(
        "recurrent: a snapshot is promised in room that others have",
        "cache.windows.recurrent",
        "RecurrentWindow.can_ask",
        "and self.has_room(2, 0)",
        "",
    ),
    Mutant(
        "recurrent: what a snapshot will take is not kept from others",
        "cache.windows.recurrent",
        "RecurrentWindow.ask",
        "self.reserve(Asked(request_id), len(asked), committed=True)",
        "pass",
        late=True,
    ),
    Mutant(
        "leader: only the first admission of a round gets a lane",
        f"{RANK}.wave_turn",
        "LeaderWave.close",
        "for admission in result.admissions)\n    admitted",
        "for admission in result.admissions[:1])\n    admitted",
    ),
    Mutant(
        "leader: a lane begins at the first token, whatever is reused",
        f"{RANK}.wave_turn",
        "LeaderWave._lane",
        "admission.endpoint",
        "0",
    ),
    Mutant(
        "leader: does not tell the engine who was let go of",
        f"{RANK}.wave_turn",
        "LeaderWave.close",
        "in result.released)",
        "in result.released[1:])",
    ),
    Mutant(
        "ballot: the last vote does not count",
        f"{ADMISSION}.ballot",
        "Ballot.cast",
        """< self._ranks:
        return None
    votes = tuple(self._votes[rank] for rank in range(self._ranks))""",
        """< max(1, self._ranks - 1):
        return None
    votes = tuple(self._votes.values())""",
    ),
    Mutant(
        "follower: takes part in the first two rounds only",
        f"{RANK}.wave_turn",
        "FollowerWave.turn",
        "self._next_round += 1",
        "self._next_round = 1",
    ),
    Mutant(
        "leader's LOOP: plans beyond what its device holds",
        f"{RANK}.loop_turn",
        "LeaderLoop.turn",
        "if len(left) < WAVES_ON_DEVICE",
        "if len(left) <= WAVES_ON_DEVICE",
    ),
    Mutant(
        "leader's LOOP: a request is materialised again with every wave",
        "runtime.state.lifecycle",
        "RequestLifecycle.materialise",
        "local.table is not None or ",
        "",
    ),
    Mutant(
        "follower's LOOP: runs a wave before its requests are admitted",
        f"{RANK}.loop_turn",
        "FollowerLoop.turn",
        "if missing is None:",
        "if missing is None or missing.start:",
    ),
    Mutant(
        "follower's LOOP: forgets the wave that waits for admission",
        f"{RANK}.loop_turn",
        "FollowerLoop.turn",
        "if request_id is not None:",
        "self._wave = None\n    if request_id is not None:",
    ),
    Mutant(
        "execution order: only a wave's first request has to be admitted",
        f"{RANK}.execution_order",
        "ExecutionOrder.unadmitted",
        "for span in spans if",
        "for span in spans[:1] if",
        late=True,
    ),
    Mutant(
        "execution order: nothing is materialised with a wave",
        f"{RANK}.execution_order",
        "ExecutionOrder.begin",
        "self.claim(header.spans)",
        "pass",
    ),
    Mutant(
        "execution order: riders' writers give what a later wave computes",
        f"{RANK}.execution_order",
        "ExecutionOrder._publish_ahead",
        "known(writer), chunk.start + chunk.length)",
        "known(writer), self._requests.known(writer).request.prompt_tokens)",
    ),
    Mutant(
        "lanes: who rode in one wave waits for its writer in the next",
        f"{PLANNING}.lanes",
        "Lanes.launch",
        "self._after.pop(span.request_id, None)",
        "pass",
    ),
    Mutant(
        "actions: headroom is kept from a request that runs alone",
        f"{ADMISSION}.actions",
        "RoundActions.vote",
        "0 if plan.exempt else self.headroom_blocks",
        "self.headroom_blocks",
        late=True,
    ),
    Mutant(
        "actions: preparing leaves no headroom",
        f"{ADMISSION}.actions",
        "RoundActions.vote",
        "0 if plan.exempt else self.headroom_blocks",
        "0",
    ),
    Mutant(
        "actions: only the first of several is let go of",
        f"{ADMISSION}.actions",
        "RoundActions.vote",
        "for request_id in plan.release:",
        "for request_id in plan.release[:1]:",
        late=True,
    ),
    Mutant(
        "actions: what failed keeps its lease",
        f"{ADMISSION}.actions",
        "RoundActions.apply",
        "for request_id in outcome.failed:",
        "for request_id in outcome.failed[1:]:",
    ),
    Mutant(
        "actions: lockstep does not park the executors",
        f"{ADMISSION}.actions",
        "LockstepActions.vote",
        "self.gate.park()",
        "pass",
        **LOCKSTEP,
    ),
    Mutant(
        "actions: lockstep resumes the executors while requests are lowered",
        f"{ADMISSION}.actions",
        "LockstepActions.apply",
        " and not outcome.lower",
        "",
        **LOCKSTEP,
    ),
    Mutant(
        "lease: who comes behind one without room is asked nevertheless",
        f"{ADMISSION}.ownership",
        "LeaseOwnership.prepare",
        "break",
        "continue",
        late=True,
    ),
    Mutant(
        "lease: damaged blocks on disk are promised to the others",
        f"{ADMISSION}.ownership",
        "LeaseOwnership.prepare",
        "while prepared is not None and not self",
        "while False and not self",
        late=True,
    ),
    Mutant(
        "lease: votes for the candidate instead of what it pinned",
        f"{ADMISSION}.ownership",
        "LeaseOwnership.prepare",
        "Claim(prepared.endpoint, ",
        "Claim(admit.endpoint, ",
        late=True,
    ),
    Mutant(
        "lease: says it committed what it has no room for",
        f"{ADMISSION}.ownership",
        "LeaseOwnership.reconcile",
        "prepared.committed)",
        "True)",
        late=True,
    ),
    Mutant(
        "immediate: a request runs from the first token whatever was agreed",
        f"{ADMISSION}.ownership",
        "ImmediateOwnership.admitted",
        "admit.endpoint)\n    self._requests",
        "0)\n    self._requests",
        ownership="none",
    ),
    Mutant(
        "immediate: going down keeps the blocks of the higher endpoint",
        f"{ADMISSION}.ownership",
        "ImmediateOwnership.reconcile",
        "self._lifecycle.release(admit.request_id)\n",
        "pass\n",
        ownership="none",
    ),
    Mutant(
        "immediate: what failed keeps its blocks",
        f"{ADMISSION}.ownership",
        "ImmediateOwnership.failed",
        "self._lifecycle.release(request_id)",
        "pass",
        ownership="none",
    ),
    Mutant(
        "immediate: damaged blocks on disk are promised to the others",
        f"{ADMISSION}.ownership",
        "ImmediateOwnership._lease",
        "while not self",
        "while False and not self",
        ownership="none",
        late=True,
    ),
    Mutant(
        "outcome: the highest endpoint of any rank",
        f"{ADMISSION}.outcome",
        "decide",
        "lowest = min(",
        "lowest = max(",
    ),
    Mutant(
        "outcome: a rank that is short of room is overheard",
        f"{ADMISSION}.outcome",
        "_short",
        "and not claim.committed",
        "and False",
        late=True,
    ),
    Mutant(
        "queue: one request too many holds a lease",
        f"{ADMISSION}.queue",
        "AdmissionQueue._free_places",
        "self.limit - ",
        "self.limit + 1 - ",
    ),
    Mutant(
        "queue: an admitted request stops counting against the limit",
        f"{ADMISSION}.queue",
        "AdmissionQueue.apply",
        "self._open.add(admit.request_id)",
        "pass",
    ),
    Mutant(
        "queue: who failed goes to the end",
        f"{ADMISSION}.waiting_line",
        "WaitingLine.put_back",
        "key=lambda item: item[1].number",
        "key=lambda item: (item[1].failed, item[1].number)",
    ),
    Mutant(
        "queue: who passes others is not charged with it",
        f"{ADMISSION}.queue",
        "AdmissionQueue._begin",
        "charge(entry, self._waiting.values())",
        "pass",
    ),
    Mutant(
        "order: who is passed too much is passed all the same",
        f"{ADMISSION}.order",
        "arrange",
        "> bound",
        "> 2 * bound",
    ),
    Mutant(
        "order: without pressure too, others than who came first are preferred",
        f"{ADMISSION}.order",
        "PrefixOrder.heads",
        "<= around.cache.free_tokens()",
        "<= 0",
        late=True,
    ),
    Mutant(
        "queue: an aborted request goes on being lowered",
        f"{ADMISSION}.queue",
        "AdmissionQueue.withdraw",
        "self._lower.pop(request_id, None)",
        "pass",
        late=True,
    ),
    Mutant(
        "queue: others are prepared while a request goes down",
        f"{ADMISSION}.queue",
        "AdmissionQueue.work",
        " and not reconcile",
        "",
        late=True,
    ),
    Mutant(
        "queue: no request is ever exempt from the headroom",
        f"{ADMISSION}.queue",
        "AdmissionQueue.work",
        "alone and bool(prepare)",
        "False",
        late=True,
    ),
    Mutant(
        "round planner: an aborted lane's end releases nothing",
        f"{ADMISSION}.round_planner",
        "RoundPlanner.lane_progressed",
        "if aborted:",
        "if False:",
    ),
    Mutant(
        "round planner: every lane's end is an abort's",
        f"{ADMISSION}.round_planner",
        "RoundPlanner.lane_progressed",
        "if aborted:",
        "if True:",
    ),
    Mutant(
        "round planner: an abort during the queue is not told to the ranks",
        f"{ADMISSION}.round_planner",
        "RoundPlanner.abort",
        "self._release.append(request_id)",
        "pass",
    ),
    Mutant(
        "round planner: news between look-up and allocation",
        f"{ADMISSION}.round_planner",
        "RoundPlanner.next_plan",
        "self._news() and not halfway",
        "self._news()",
        **LOCKSTEP,
    ),
    Mutant(
        "queue: in lockstep, news between allocations",
        f"{ADMISSION}.queue",
        "AdmissionQueue.halfway",
        " or bool(self._lower)",
        "",
        **LOCKSTEP,
    ),
    Mutant(
        "queue: in lockstep, others are prepared while a request goes down",
        f"{ADMISSION}.queue",
        "AdmissionQueue._lockstep_work",
        "if reconcile:",
        "if reconcile and not heads:",
        **LOCKSTEP,
        late=True,
    ),
    Mutant(
        "lanes: an aborted request ends although waves carry it",
        f"{PLANNING}.lanes",
        "Lanes.take",
        "if self.ring.carries(request_id):",
        "if False:",
    ),
    Mutant(
        "lanes: an aborted request ends with the first of its waves",
        f"{PLANNING}.lanes",
        "Lanes.complete",
        "if self.ring.carries(span.request_id):",
        "if False:",
        late=True,
    ),
    Mutant(
        "lanes: all admitted requests share waves",
        f"{PLANNING}.lanes",
        "Lanes._open",
        "islice(lanes, self._max_num_seqs)",
        "iter(lanes)",
        late=True,
    ),
    Mutant(
        "ring: holds one wave more",
        f"{PLANNING}.ring",
        "Ring.full",
        ">= self.size",
        "> self.size",
    ),
    Mutant(
        "ring: the last wave of a request does not carry it",
        f"{PLANNING}.ring",
        "Ring.carries",
        "> 0",
        "> 1",
    ),
    Mutant(
        "lifecycle: publishes a block before its last token",
        "runtime.state.lifecycle",
        "RequestLifecycle.chunk_executed",
        "publish(request_id, end)",
        "publish(request_id, end + 1)",
        late=True,
    ),
    Mutant(
        "lifecycle: a request is forgotten before its last chunk",
        "runtime.state.lifecycle",
        "RequestLifecycle.chunk_executed",
        "if span.last and (",
        "if (",
    ),
    Mutant(
        "lifecycle: the first user of evicted blocks does not tell that they are gone",
        "runtime.state.lifecycle",
        "RequestLifecycle.take_blocks",
        "self._reports.cache_changed(None)",
        "pass",
    ),
    Mutant(
        "reports: only the first run of published blocks is told",
        "runtime.state.reports",
        "RankReports.cache_changed",
        "stored=tuple(runs)",
        "stored=tuple(runs[1:])",
    ),
    Mutant(
        "clear: what requests hold is forgotten as well",
        "cache.tree",
        "BlockTree.clear",
        " and not node.pins",
        "",
    ),
    Mutant(
        "clear: only rank 0 does it",
        f"{ADMISSION}.actions",
        "RoundActions._do",
        "case Clear():",
        "case Clear() if not self.rank:",
    ),
    Mutant(
        "clear: nobody is told that blocks are gone",
        "runtime.state.lifecycle",
        "RequestLifecycle.clear",
        "self._reports.cache_changed(None)",
        "pass",
    ),
    Mutant(
        "escrow: pinning ignores what is promised to others",
        "cache.windows.window",
        "Window.pinnable",
        " - self.ledger.promised + escrow.blocks * escrow.committed",
        "",
        late=True,
    ),
    Mutant(
        "escrow: committing ignores what is promised to others",
        "cache.windows.window",
        "Window.has_committed_room",
        "- others >= blocks",
        ">= blocks",
        late=True,
    ),
    Mutant(
        "escrow: reserving ignores what is reserved for others",
        "cache.windows.window",
        "Window.unreserved",
        " - self.ledger.reserved",
        "",
    ),
    Mutant(
        "escrow: what is lowered stays committed",
        "cache.reservations",
        "Reservations._go_down",
        "committed=False",
        "committed=True",
    ),
    Mutant(
        "escrow: a commit that fails keeps its pins on the lower endpoint",
        "cache.reservations",
        "Reservations.commit",
        "self._unpin(shares, unless=reservation.shares)",
        "pass",
        late=True,
    ),
    Mutant(
        "escrow: blocks that have to come up from the host are not counted",
        "cache.windows.window",
        "Window.demand",
        "len(self.below_device(share)) + ",
        "",
        late=True,
    ),
)


def _caught(job: tuple[Mutant, int]) -> tuple[tuple[int, str] | None, float]:
    logging.disable(logging.WARNING)
    mutant, seeds = job
    begun = time.perf_counter()
    return mutant.caught(seeds), time.perf_counter() - begun


def main(
    seeds: Annotated[int, typer.Option(help="Schedules for each mutant.")] = SEEDS,
    only: Annotated[str, typer.Option(help="Those mutants whose name contains this.")] = "",
) -> None:
    """Plant each mutant and look for the first schedule that shows it; fails if one shows in none."""
    chosen = [mutant for mutant in MUTANTS if only in mutant.name]
    table = Table("mutant", "seed", "seconds", "what it broke")
    survivors = 0
    with multiprocessing.get_context("spawn").Pool(2, keep_imports) as pool:
        jobs = [(mutant, seeds) for mutant in chosen]
        for mutant, (found, seconds) in zip(chosen, pool.imap(_caught, jobs), strict=True):
            survivors += found is None
            seed, message = ("none", "survived") if found is None else (str(found[0]), found[1])
            table.add_row(mutant.name, seed, f"{seconds:.1f}", message)
    Console().print(table)
    typer.echo(f"{len(chosen) - survivors} of {len(chosen)} caught")
    if survivors or not chosen:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
