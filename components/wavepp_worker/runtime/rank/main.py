"""One pipeline rank: a process whose main thread is the LOOP thread, with a WAVE thread beside it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import torch
import zmq

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.runtime.admission.ownership import ImmediateOwnership, LeaseOwnership
from wavepp_worker.runtime.admission.round_actions import LockstepActions, RoundActions
from wavepp_worker.runtime.admission.round_planner import make_round_planner
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.events import RankFailed, RankReady
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import LaneAborted, LaneAdmitted, LaneAdvance
from wavepp_worker.runtime.protocol.outbox import Outbox
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.rank.follower import run_follower_loop, run_follower_wave
from wavepp_worker.runtime.rank.garbage_collection import collect_young_only
from wavepp_worker.runtime.rank.leader_loop import LeaderLoop
from wavepp_worker.runtime.rank.leader_wave import Leader
from wavepp_worker.runtime.state.local_state import LocalState
from wavepp_worker.runtime.state.tier_store import open_tiers
from wavepp_worker.runtime.trace.recording import Recording
from wavepp_worker.runtime.trace.timeline import OFF, Timeline


class Closable(Protocol):
    """Whatever holds sockets."""

    def close(self) -> None: ...


def run_rank(config: RankConfig) -> None:
    """Load this rank's layers, connect, report ready, and serve until told to stop."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    events = Outbox(context, config.events)
    recording = Recording(Path(config.timeline)) if config.timeline else None

    def fail(error: BaseException) -> None:
        """The rank cannot go on: say why, and leave at once, so that nobody waits for it."""
        if not isinstance(error, WaveppError):
            traceback.print_exception(error)
        wrong_config = isinstance(error, ConfigError)
        reason = str(error) if wrong_config else f"{type(error).__name__}: {error}"
        events.send(RankFailed(rank=config.rank, reason=reason, config=wrong_config))
        events.close()
        if recording is not None:
            recording.close()
        context.term()
        os._exit(1)

    try:
        _serve(config, context, events, fail, recording.timeline if recording is not None else OFF)
    except Exception as error:
        fail(error)
    events.close()
    if recording is not None:
        recording.close()
    context.term()


def _serve(
    config: RankConfig,
    context: zmq.Context[zmq.Socket[bytes]],
    events: Outbox,
    fail: Callable[[BaseException], None],
    timeline: Timeline,
) -> None:
    torch.set_num_threads(config.threads)
    device = config.device
    if device == "cuda":
        device = f"cuda:{config.rank % torch.cuda.device_count()}"
    stage = load_stage(Path(config.model), range(*config.layers), getattr(torch, config.dtype), device)
    kv = stage.make_kv(config.blocks, config.block_size)
    window = WindowSpec(
        "attention", "full", config.blocks, host_blocks=config.host_blocks, disk_blocks=config.disk_blocks
    )
    cache = RankCache([window], config.block_size)
    tiers = open_tiers(config, kv)
    cache.restore(tiers.records(0))
    state = LocalState(config, events, cache, tiers, timeline)
    if config.handoff != "none":
        from wavepp_worker.handoff.transport import make_source

        state.source = make_source(
            config.handoff,
            rank=config.rank,
            host=config.host,
            kv=kv,
            dtype=stage.dtype,
            timeout=config.handoff_timeout,
            on_settled=state.settled,
        )
    gate = WaveGate()
    ownership = LeaseOwnership(state) if config.leases else ImmediateOwnership(state)
    actions = LockstepActions(state, ownership, gate) if config.lockstep else RoundActions(state, ownership)
    plane = DataPlane(context, config.data[config.rank], config.data[(config.rank + 1) % config.ranks])
    executor = Executor(state, stage, kv, plane, fail)
    if config.first:
        to_loop: Inbox[LaneAdmitted | LaneAborted] = Inbox(context, "loop")
        to_wave: Inbox[LaneAdvance] = Inbox(context, "wave")
        commands = context.socket(zmq.PULL)
        commands.bind(config.commands)
        leader_rounds = LeaderRounds(context, list(config.rounds), config.wait, config.round_delay)
        round_planner = make_round_planner(config)
        leader = Leader(state, leader_rounds, actions, round_planner, commands, to_wave, to_loop)
        lanes = Lanes(Ring(2 * config.ranks), make_planner(config), config.max_num_seqs)
        loop = LeaderLoop(
            state, executor, plane, gate, lanes, to_loop, to_wave, lambda: round_planner.waiting
        )
        closing: list[Closable] = [leader_rounds, to_loop, to_wave, commands, plane]
        wave_main, loop_main = leader.run, loop.run
    else:
        rounds = FollowerRounds(context, config.rounds[config.rank - 1], config.wait)
        admitted: Inbox[str] = Inbox(context, "loop")
        closing = [rounds, admitted, plane]

        def wave_main() -> None:
            run_follower_wave(state, rounds, actions, admitted)

        def loop_main() -> None:
            run_follower_loop(state, executor, plane, gate, admitted)

    def guarded_wave() -> None:
        try:
            wave_main()
        except Exception as error:
            fail(error)

    wave = threading.Thread(target=guarded_wave, name="WAVE", daemon=True)
    wave.start()
    collect_young_only()
    address = state.source.address if state.source is not None else None
    events.send(RankReady(rank=config.rank, handoff=address))
    loop_main()
    executor.close()
    wave.join(config.wait)
    if state.source is not None:
        state.source.close()
    tiers.run(cache.flush())
    tiers.close()
    for closable in closing:
        closable.close()


def _die_with_parent() -> None:
    """The engine holds the other end of standard input; when it goes, however it goes, so does this rank."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(2)


def main() -> None:
    """Entry point of the process: a ``RankConfig`` as one JSON line on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankConfig)
    threading.Thread(target=_die_with_parent, name="lifeline", daemon=True).start()
    run_rank(config)


if __name__ == "__main__":
    main()
