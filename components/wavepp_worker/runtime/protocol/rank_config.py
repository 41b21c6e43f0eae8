"""What one rank process is told when it is spawned; the engine computes it, nothing in it is optional."""

from __future__ import annotations

import signal

import msgspec

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends its engine's process must not end a rank: the engine stops its ranks in order."""


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of one rank process, JSON on its standard input.

    Attributes:
        lora_modules: see ``EngineConfig``.
        kv_dtype: see ``EngineConfig``.
        layers: ``(first, end)`` of this rank's layers.
        blocks: KV blocks of this rank.
        riders: whether requests may read what others compute in the same wave: every layer of every rank keeps every
            token.
        keeps_keys: whether it keeps account of all blocks of a prompt though no layer of it keeps every token.
        host_blocks: blocks of its host-memory tier; 0 for none.
        disk_blocks: blocks of its disk tier; 0 for none.
        state_blocks: states of recurrent layers of this rank: of requests that run, and snapshots.
        host_state_blocks: snapshots in its host-memory tier.
        disk_state_blocks: snapshots in its disk tier.
        snapshot_interval: tokens between two snapshots of a prompt.
        disk_path: directory of the disk tier.
        key_secret_id: tells secrets of block keys apart; a disk tier filled under another one is of no use.
        admission: ``lockstep`` or ``wave``.
        ownership: ``none`` or ``lease``.
        headroom_blocks: blocks that preparing a request must leave to others.
        order: ``fcfs`` or ``prefix``; see ``EngineConfig``.
        order_max_passed_tokens: see ``EngineConfig``.
        min_num_batched_tokens: fewest tokens a wave's budget shrinks to; None for the planner's default.
        planner: see ``EngineConfig``.
        wave_cost: seconds of the slowest stage per wave, per token, and per token and token of context.
        round_delay: seconds added to every round, to measure that admission does not block execution.
        commands: address rank 0 takes commands from.
        events: address all ranks send events to.
        rounds: addresses of the rounds plane, one per follower, in rank order.
        data: addresses of the data plane, one per rank: where it receives.
        activations: ``nccl``, ``ipc``, ``gloo`` or ``socket``: how they get to the next rank; the same for all ranks.
        or_socket: whether they go by ``socket`` where ``ipc`` turns out to be impossible.
        meeting: a file by which ranks find each other, if it is not by sockets.
        timeline: file this rank records its timeline in; empty for none.
        wait: seconds any wait inside the worker may take before it is an error.
        wave_timeout: seconds that any step of a thread may take; see ``EngineConfig``.
        first_wave_timeout: seconds that a wave may take of which none of its size ran before.
    """

    rank: int
    ranks: int
    model: str
    model_id: str
    lora_modules: tuple[str, ...]
    layers: tuple[int, int]
    dtype: str
    kv_dtype: str
    device: str
    threads: int
    block_size: int
    blocks: int
    riders: bool
    keeps_keys: bool
    host_blocks: int
    disk_blocks: int
    state_blocks: int
    host_state_blocks: int
    disk_state_blocks: int
    snapshot_interval: int
    disk_path: str
    key_secret_id: str
    admission: str
    ownership: str
    headroom_blocks: int
    order: str
    order_max_passed_tokens: int
    round_delay: float
    max_num_batched_tokens: int
    min_num_batched_tokens: int | None
    planner: str
    wave_cost: tuple[float, float, float] | None
    max_num_seqs: int
    host: str
    handoff: str
    handoff_timeout: float
    commands: str
    events: str
    rounds: tuple[str, ...]
    data: tuple[str, ...]
    activations: str
    or_socket: bool
    meeting: str
    timeline: str
    wait: float
    wave_timeout: float
    first_wave_timeout: float

    @property
    def lockstep(self) -> bool:
        return self.admission == "lockstep"

    @property
    def leases(self) -> bool:
        return self.ownership == "lease"

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.ranks - 1
