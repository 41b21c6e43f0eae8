"""What a worker says of itself once it runs: as people ask before they trust a configuration."""

from __future__ import annotations

import msgspec


class RankDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One process's share of the model and of its KV.

    Attributes:
        layers: how many of the model's it computes.
        kv_tokens: that its device holds.
        bytes_per_token: of KV over all of these layers; 0 if it keeps none.
        host_tokens: that its host tier holds.
        disk_tokens: that its disk tier holds.
        pid: of its process; None if that is the worker's own.
        states: of recurrent layers that its device holds, running ones and snapshots.
        state_bytes: of one of them; 0 if none of its layers is recurrent.
    """

    layers: int
    kv_tokens: int
    bytes_per_token: int
    host_tokens: int = 0
    disk_tokens: int = 0
    pid: int | None = None
    states: int = 0
    state_bytes: int = 0


class EngineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a worker.

    Attributes:
        role: ``prefill`` or ``decode``.
        dtype: of weights and KV.
        device: what it computes on.
        ranks: in the order of their layers.
        bootstrap: ``host:port`` at which decode workers claim hand-offs.
        transport: how it hands KV over: ``socket`` or ``nixl``; None if it takes KV, over whatever it is offered.
    """

    role: str
    dtype: str
    device: str
    ranks: tuple[RankDescription, ...]
    bootstrap: str | None = None
    transport: str | None = None


class WorkerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A worker.

    Attributes:
        instance: its id in Dynamo's discovery, in hexadecimal; None before it is there.
        engines: what it runs.
        paused: an operator has it take no requests.
        entering: its adapters, or some of them, are not in discovery yet.
    """

    instance: str | None
    engines: tuple[EngineDescription, ...]
    paused: bool = False
    entering: bool = False
