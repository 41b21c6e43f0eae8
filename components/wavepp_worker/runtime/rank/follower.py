"""The two threads of ranks 1 … P-1: WAVE votes on rank 0's plans, LOOP executes the waves that arrive."""

from __future__ import annotations

import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.admission.round_actions import RoundActions
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.waves import WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.state.local_state import LocalState

HEARTBEAT_SECONDS = 0.5


def run_follower_wave(
    state: LocalState, rounds: FollowerRounds, actions: RoundActions, executor: Inbox[str]
) -> None:
    """Take part in every round until one says stop; tell the LOOP thread what was admitted."""
    while not state.stopping.is_set():
        plan = rounds.next_plan(HEARTBEAT_SECONDS)
        if plan is None:
            state.heartbeat(waiting=0, running=0)
            continue
        outcome = actions.apply(plan, rounds.exchange(actions.vote(plan)))
        for admit in outcome.admitted:
            executor.put(admit.request_id)


def run_follower_loop(
    state: LocalState,
    executor: Executor,
    plane: DataPlane,
    gate: WaveGate,
    admitted: Inbox[str],
) -> None:
    """Execute the waves that arrive, until the rank stops; materialise admitted requests in between."""
    poller = zmq.Poller()
    poller.register(plane.socket, zmq.POLLIN)
    poller.register(admitted.socket, zmq.POLLIN)
    waiting: list[str] = []
    timeline = state.timeline
    since = timeline.now()
    while not state.stopping.is_set():
        arrived = dict(poller.poll(0 if waiting else 100))
        waiting += admitted.take()
        if plane.socket in arrived:
            header, tensors = plane.receive()
            if not isinstance(header, WaveHeader):
                raise PositionMismatch(f"rank {state.config.rank} expected a wave, got {header}")
            timeline.record("loop", "receive", since, timeline.now(), header.wave_id)
            with gate.executing(state.config.wait):
                executor.execute(header, tensors)
            since = timeline.now()
        elif waiting:
            executor.materialise(waiting.pop(0))
            since = timeline.now()
