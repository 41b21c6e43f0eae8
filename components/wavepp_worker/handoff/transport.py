"""Which transport KV takes, and a rank's source for it."""

from __future__ import annotations

import torch

from wavepp_worker.handoff.kv_source import KVSource, OnSettled
from wavepp_worker.handoff.prefill.rank_source import RankSource
from wavepp_worker.handoff.prefill.socket_source import SocketSource
from wavepp_worker.model.stage import PagedKV


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
