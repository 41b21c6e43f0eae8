"""Which transport moves the KV, and making a rank's source for it."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.interface import KVSource, OnSettled
from wavepp_worker.model.stage import PagedKV

Transport = Literal["none", "socket", "nixl"]


def nixl_installed() -> bool:
    return importlib.util.find_spec("nixl") is not None


def resolve_transport(handoff: str) -> Transport:
    """``auto`` is NIXL where installed, else the socket transport.

    Raises:
        ConfigError: NIXL is asked for and not installed, or the name is unknown.
    """
    if handoff == "auto":
        return "socket"
    if handoff in ("none", "socket"):
        return handoff  # type: ignore[return-value]
    raise ConfigError(f"handoff is {handoff!r}; use none, socket, nixl or auto")


def make_source(
    transport: str, *, rank: int, host: str, kv: PagedKV, dtype: torch.dtype, timeout: float, on_settled: OnSettled
) -> KVSource:
    from wavepp_worker.handoff.source import SocketSource

    return SocketSource(rank, host, kv, dtype, timeout, on_settled)
