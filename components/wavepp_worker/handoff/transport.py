"""Which transport KV takes, and a rank's source for it."""

from __future__ import annotations

from typing import Literal

import torch

from wavepp_worker.errors import ConfigError
from wavepp_worker.handoff.kv_source import KVSource, OnSettled
from wavepp_worker.handoff.nixl.library import nixl_installed
from wavepp_worker.handoff.prefill.rank_source import RankSource
from wavepp_worker.handoff.prefill.socket_source import SocketSource
from wavepp_worker.model.stage import PagedKV


def resolve_transport(handoff: str) -> Literal["none", "socket", "nixl"]:
    """What the configuration key ``handoff`` (none, socket, nixl or auto) means on this machine.

    Raises:
        ConfigError: NIXL is asked for but not installed, or ``handoff`` is something else.
    """
    if handoff == "auto":
        return "nixl" if nixl_installed() else "socket"
    if handoff == "nixl":
        if not nixl_installed():
            raise ConfigError(
                "handoff is nixl, but NIXL is not installed: install the extra with pip install "
                "'wavepp-worker[nixl]', or set handoff to socket or auto"
            )
        return "nixl"
    if handoff == "socket":
        return "socket"
    if handoff == "none":
        return "none"
    raise ConfigError(f"handoff is {handoff!r}; choose none, socket, nixl or auto")


def make_source(
    transport: str,
    *,
    rank: int,
    host: str,
    kv: PagedKV,
    dtype: torch.dtype,
    timeout: float,
    on_settled: OnSettled,
) -> KVSource:
    """A listening source over ``kv`` for one rank.

    Args:
        transport: what ``resolve_transport`` said, but not ``none``.

    Raises:
        ConfigError: NIXL cannot be loaded.
        HandoffError: ``host`` is not an address of this machine, or the KV memory cannot be registered.
    """
    source: type[RankSource] = SocketSource
    if transport == "nixl":
        from wavepp_worker.handoff.prefill.nixl_source import NixlSource

        source = NixlSource
    return source(rank=rank, host=host, kv=kv, dtype=dtype, timeout=timeout, on_settled=on_settled)
