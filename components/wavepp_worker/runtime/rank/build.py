"""Builds one rank process's device, books and threads from its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import zmq

from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import ConfigError
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Watchdog, Watched
from wavepp_worker.model.kv.window_pool import window_pool, window_tier
from wavepp_worker.model.lora import read_adapters
from wavepp_worker.model.stage import BlockMemory, PagedKV, StageModel
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.runtime.admission.round_planner import make_round_planner
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds, LeaderRounds
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.inbox import Inbox
from wavepp_worker.runtime.protocol.lane_events import (
    LaneMessage,
    LaneProgress,
)
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank.answers import Answers
from wavepp_worker.runtime.rank.data_plane import DataPlane
from wavepp_worker.runtime.rank.departures import Departures
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.rank.ipc_plane import open_ipc_plane
from wavepp_worker.runtime.rank.loop_thread import FollowerLoopThread, LeaderLoopThread
from wavepp_worker.runtime.rank.loop_turn import FollowerLoop, LeaderLoop
from wavepp_worker.runtime.rank.parts import RankParts, make_parts
from wavepp_worker.runtime.rank.tensor_plane import TensorPlane, open_tensor_plane
from wavepp_worker.runtime.rank.wave_thread import FollowerWaveThread, LeaderWaveThread
from wavepp_worker.runtime.rank.wave_turn import HEARTBEAT_SECONDS, FollowerWave, LeaderWave
from wavepp_worker.runtime.state.reports import EventSink
from wavepp_worker.runtime.tiers.no_memory import NoMemory
from wavepp_worker.runtime.tiers.tier_store import TierStore, open_tiers
from wavepp_worker.runtime.trace.recorder import Recorder
from wavepp_worker.runtime.trace.timeline import Timeline

logger = logging.getLogger(__name__)

Context = zmq.Context[zmq.Socket[bytes]]


_WAYS = {
    "nccl": "by NCCL from GPU to GPU",
    "ipc": "by memory of a GPU that both ranks open",
    "gloo": "by Gloo over TCP of loopback",
    "socket": "by page-locked memory and a socket",
}


class Closable(Protocol):
    """Whatever holds sockets."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class StageDevice:
    """A rank's layers, and where the KV of their blocks is."""

    stage: StageModel
    kv: PagedKV
    tiers: TierStore


@dataclass(frozen=True)
class Threads:
    """The two threads of a rank, and what to close when both have ended."""

    wave: LeaderWaveThread | FollowerWaveThread
    loop: LeaderLoopThread | FollowerLoopThread
    executor: Executor
    sockets: Sequence[Closable]


def load_device(config: RankConfig) -> StageDevice:
    """Load this rank's layers and take its memory.

    Raises:
        ConfigError: the device, the weights or a tier cannot be used.
    """
    torch.set_num_threads(config.threads)
    name = config.device
    if name == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ConfigError(
                f"device: cuda is asked for, but torch {torch.__version__} sees no GPU; install a build of torch for "
                "CUDA and a driver that it takes, or set device to cpu"
            )
        name = f"cuda:{config.rank % count}"
        # What names no device, as page-locking memory, would take memory of the first GPU otherwise.
        torch.cuda.set_device(name)
    adapters = list(read_adapters(config.lora_modules).values())
    stage = load_stage(
        Path(config.model),
        range(*config.layers),
        getattr(torch, config.dtype),
        name,
        adapters,
        config.kv_dtype,
    )
    if name != "cpu":
        from wavepp_worker.model.gpu.packed_attention import kernel_on_gpu
        from wavepp_worker.model.torch_stage import TorchStage

        assert isinstance(stage, TorchStage), "others compute on no GPU"
        logger.warning(
            "layers %d to %d are computed on %s, which nobody has tried yet: attention by %s, activations to the next "
            "rank %s",
            *(stage.layers.start, stage.layers.stop - 1, name),
            kernel_on_gpu(torch.device(name), stage.dtype, stage.attention_kinds),
            _WAYS[config.activations],
        )
        stage.activations_stay = config.activations in ("nccl", "ipc")
    kv = stage.make_kv(
        config.blocks,
        config.block_size,
        config.state_blocks,
        lambda span: _window_pool(config, span)[0],
    )
    return StageDevice(stage, kv, open_tiers(config, window_memories(config, stage, kv)))


def window_memories(
    config: RankConfig, stage: StageModel, kv: PagedKV
) -> list[tuple[WindowSpec, BlockMemory]]:
    """What the rank's layers keep, one window for each way in which a cache is kept, and where its blocks are."""
    windows: list[tuple[WindowSpec, BlockMemory]] = []
    for number, span in enumerate(kv.spans):
        blocks, wave = _window_pool(config, span) if span else (config.blocks, None)
        host, disk = (
            window_tier(below, config.block_size, span) if span else below
            for below in (config.host_blocks, config.disk_blocks)
        )
        attention = WindowSpec(
            f"last {span} tokens" if span else "attention",
            "sliding" if span else "full",
            blocks,
            host_blocks=host,
            disk_blocks=disk,
            span=span,
            wave=wave,
        )
        windows.append((attention, kv if kv.spans == (0,) else kv.memory(number)))
    if config.keeps_keys and not any(spec.kind == "full" for spec, _ in windows):
        keys = WindowSpec(
            "keys",
            "full",
            config.blocks,
            host_blocks=config.host_blocks,
            disk_blocks=config.disk_blocks,
            keys_only=True,
        )
        windows.insert(0, (keys, NoMemory(config.blocks, kv.device)))
    if kv.states is not None:
        recurrent = WindowSpec(
            "states",
            "recurrent",
            config.state_blocks,
            host_blocks=config.host_state_blocks,
            disk_blocks=config.disk_state_blocks,
            interval=config.snapshot_interval,
        )
        windows.append((recurrent, kv.states))
    return windows


def _window_pool(config: RankConfig, span: int) -> tuple[int, int | None]:
    return window_pool(
        config.blocks, config.block_size, span, config.max_num_seqs, config.max_num_batched_tokens
    )


def make_rank(
    config: RankConfig, device: StageDevice, events: EventSink, gate: WaveGate, recorder: Recorder
) -> RankParts:
    """The rank's books, with what its disk tier kept, and its hand-off."""
    specs = [spec for spec, _ in window_memories(config, device.stage, device.kv)]
    cache = RankCache(specs, config.block_size)
    for window in range(len(specs)):
        found = device.tiers.restore(window)
        cache.restore(((block.key, block.parent, block.slot) for block in found), window)
    parts = make_parts(
        cache,
        device.tiers,
        events,
        rank=config.rank,
        headroom_blocks=config.headroom_blocks,
        leases=config.leases,
        origins=device.tiers.origins,
        gate=gate if config.lockstep else None,
        timeline=recorder.timeline,
        recorder=recorder,
    )
    parts.reports.restored()
    if config.handoff != "none":
        from wavepp_worker.handoff.transport import make_source

        parts.lifecycle.source = make_source(
            config.handoff,
            rank=config.rank,
            host=config.host,
            kv=device.kv,
            dtype=device.stage.kv_dtype,
            timeout=config.handoff_timeout,
            on_settled=parts.lifecycle.settled,
        )
    return parts


def make_threads(
    config: RankConfig,
    context: Context,
    device: StageDevice,
    parts: RankParts,
    events: EventSink,
    gate: WaveGate,
    timeline: Timeline,
    fail: Callable[[BaseException], None],
    watchdog: Watchdog,
) -> Threads:
    """Connect this rank to the others; ``fail`` ends the rank from any thread."""
    wave_watched, loop_watched = watchdog.watch("WAVE"), watchdog.watch("LOOP")
    after = config.data[(config.rank + 1) % config.ranks]
    plane = DataPlane(context, config.data[config.rank], after, _tensor_plane(config, context, device))
    outlet: Answers | Departures
    if config.last:
        watched = watchdog.watch("answers")
        outlet = Answers(plane, parts.reports, timeline, config.wait, fail, watched)
    else:
        outlet = Departures(plane, timeline, config.wait, fail, watchdog.watch("departures"))
    executor = Executor(
        device.stage,
        device.kv,
        parts.order,
        timeline,
        first=config.first,
        outlet=outlet,
        watched=loop_watched,
        bound=StepBound(config.wave_timeout, config.first_wave_timeout),
        idle=parts.reports.idle,
    )
    if config.first:
        return _leader(
            config, context, parts, events, gate, timeline, plane, executor, wave_watched, loop_watched
        )
    rounds = FollowerRounds(context, config.rounds[config.rank - 1])
    admitted: Inbox[str] = Inbox(context, "loop")
    wave = FollowerWave(parts.actions, parts.reports, config.wait, HEARTBEAT_SECONDS)
    loop = FollowerLoop(parts.order, timeline, config.wait)
    return Threads(
        FollowerWaveThread(wave, rounds, admitted, events, wave_watched, config.wave_timeout),
        FollowerLoopThread(loop, executor, plane, gate, admitted, loop_watched, config.wave_timeout),
        executor,
        (rounds, admitted, plane),
    )


def _tensor_plane(config: RankConfig, context: Context, device: StageDevice) -> TensorPlane | None:
    if config.activations == "socket":
        return None
    longest = max(config.wait, config.first_wave_timeout)
    if config.activations == "ipc":
        from wavepp_worker.model.torch_stage import TorchStage

        assert isinstance(device.stage, TorchStage), "others compute on no GPU"
        plane = open_ipc_plane(
            context,
            config.rank,
            config.ranks,
            config.meeting,
            device.kv.device,
            config.max_num_batched_tokens * device.stage.activation_bytes,
            longest,
            or_none=config.or_socket,
        )
        device.stage.activations_stay = plane is not None
        return plane
    return open_tensor_plane(
        config.activations, config.rank, config.ranks, device.kv.device, Path(config.meeting), longest
    )


def _leader(
    config: RankConfig,
    context: Context,
    parts: RankParts,
    events: EventSink,
    gate: WaveGate,
    timeline: Timeline,
    plane: DataPlane,
    executor: Executor,
    wave_watched: Watched,
    loop_watched: Watched,
) -> Threads:
    to_loop: Inbox[LaneMessage] = Inbox(context, "loop")
    to_wave: Inbox[LaneProgress] = Inbox(context, "wave")
    commands = context.socket(zmq.PULL)
    commands.bind(config.commands)
    rounds = LeaderRounds(context, list(config.rounds), config.wait, config.round_delay)
    wave = LeaderWave(
        make_round_planner(config),
        parts.actions,
        parts.requests,
        parts.reports,
        parts.cache,
        config.ranks,
        HEARTBEAT_SECONDS,
    )
    planner = make_planner(config, config.ranks)
    lanes = Lanes(Ring(2 * config.ranks), planner, config.max_num_seqs, riders=config.riders)
    loop, seconds = LeaderLoop(lanes, parts.order, timeline, parts.reports.send), config.wave_timeout
    return Threads(
        LeaderWaveThread(wave, rounds, commands, to_wave, to_loop, events, timeline, wave_watched, seconds),
        LeaderLoopThread(loop, executor, plane, gate, to_loop, to_wave, parts.reports, loop_watched, seconds),
        executor,
        (rounds, to_loop, to_wave, commands, plane),
    )
