"""Whether the file systems of disk tiers have room for them, before any is made."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.dtype_choice import dtype_name
from wavepp_worker.model.kv.layer_cache import LayerCache
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.runtime.client.kv_pools import tier_blocks, tier_bytes_of
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.writable import existing


@dataclass(frozen=True)
class DiskUse:
    """What the disk tier of one replica takes.

    Attributes:
        path: its directory, which may not exist yet.
        missing: bytes beyond those that its files have allocated; less than 0 if they shrink.
    """

    path: Path
    missing: int


def disk_use(config: EngineConfig, shape: ModelShape) -> DiskUse | None:
    """What the ranks' files need at least; None without a disk tier.

    Never more than they will take: what the shape does not tell counts as nothing, and the engine looks again.

    Args:
        shape: of the configuration's model.

    Raises:
        ConfigError: as for ``tier_blocks`` and ``dtype_name``.
    """
    blocks = [disk for _, disk in tier_blocks(config)]
    if config.disk_path is None or not any(blocks):
        return None
    needed = _bytes_of(config, shape, blocks)
    endings = ["blocks", *(f"last-{span}" for span in sorted({cache.span for cache in shape.caches} - {0}))]
    files = (config.disk_path / f"rank{rank}.{ending}" for rank in range(config.pp) for ending in endings)
    return DiskUse(config.disk_path, needed - sum(_allocated(file) for file in files))


def check_room(uses: Sequence[DiskUse]) -> None:
    """Refuse tiers that do not fit together on the file system where they shall be.

    Raises:
        ConfigError: names ``disk_path`` of the last that does not fit.
    """
    together: dict[int, int] = defaultdict(int)
    for use in uses:
        place = existing(use.path)
        device = place.stat().st_dev
        together[device] += use.missing
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        if together[device] > free:
            raise ConfigError(
                f"disk_path: {use.path} is on a file system with {free / 2**30:.1f} GiB free, but disk_kv_tokens asks "
                f"for {together[device] / 2**30:.1f} GiB more there, over all ranks and replicas; lower "
                "disk_kv_tokens or give a disk_path with more space"
            )


def _bytes_of(config: EngineConfig, shape: ModelShape, blocks: Sequence[int]) -> int:
    """Bytes of the blocks of all ranks; see ``disk_use``."""
    dtype = dtype_name(config.dtype, shape.dtype, config.device)
    caches = shape.caches_in(config.kv_dtype)

    def of(part: Sequence[LayerCache], count: int) -> int:
        return tier_bytes_of(config, part, dtype, count)

    if config.partition is not None:
        ends = list(accumulate(config.partition))
        parts = (caches[first:end] for first, end in zip([0, *ends], ends, strict=False))
        return sum(of(part, count) for count, part in zip(blocks, parts, strict=True))
    # Which ranks get more than one layer depends on what layers cost.
    least = min(blocks)
    more = (min((of([cache], count) - of([cache], least) for cache in caches), default=0) for count in blocks)
    return of(caches, least) + sum(more)


def _allocated(file: Path) -> int:
    try:
        return file.stat().st_blocks * 512
    except OSError:
        return 0
