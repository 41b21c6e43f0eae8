"""A rank process whose blocks hold no numbers until they are written; ``python -m`` it in place of a rank.

Whoever reads one before it is written gets an answer of no numbers. The file that ``RIDES`` names in the environment
grows by a byte for each request that shares a wave with whom it reads from.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from wavepp_worker.model.kv.paged_kv import TorchPagedKV
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank import main as rank_main
from wavepp_worker.runtime.rank.build import StageDevice, load_device
from wavepp_worker.runtime.state.lifecycle import RequestLifecycle

MODULE = "tests.support.poisoning_rank"
RIDES = "WAVEPP_TEST_RIDES"


def poison(kv: TorchPagedKV, window: int, blocks: torch.Tensor) -> None:
    """Make all that a window's layers hold in these blocks no number."""
    for layer in kv.layers:
        if kv.window(layer) == window:
            for pool in kv.pools(layer):
                by_block = pool.view(-1, kv.block_size, *pool.shape[1:])
                # In FP8, all bits set are no number, in rows as in their scales.
                by_block[blocks[blocks >= 0]] = 255 if pool.dtype is torch.uint8 else torch.nan


def load_poisoning_device(config: RankConfig) -> StageDevice:
    device = load_device(config)
    kv = device.kv
    assert isinstance(kv, TorchPagedKV)
    install, chunk_begins = RequestLifecycle.install, RequestLifecycle.chunk_begins

    @functools.wraps(install)
    def poisoning_install(self: RequestLifecycle, local: Any, endpoint: int, *, written: bool = True) -> None:
        install(self, local, endpoint, written=written)
        for window, row in enumerate(torch.atleast_2d(local.table)):
            poison(kv, window, row[endpoint // kv.block_size :])

    @functools.wraps(chunk_begins)
    def poisoning_chunk_begins(self: RequestLifecycle, local: Any, end: int) -> None:
        before = torch.atleast_2d(local.table).clone()
        chunk_begins(self, local, end)
        for window, row in enumerate(torch.atleast_2d(local.table)):
            poison(kv, window, row[row != before[window]])

    publish_ahead = RequestLifecycle.publish_ahead

    @functools.wraps(publish_ahead)
    def counted_publish_ahead(self: RequestLifecycle, local: Any, end: int) -> None:
        publish_ahead(self, local, end)
        if RIDES in os.environ:
            with open(os.environ[RIDES], "ab") as file:
                file.write(b".")

    RequestLifecycle.publish_ahead = counted_publish_ahead  # type: ignore[method-assign]
    RequestLifecycle.install = poisoning_install  # type: ignore[method-assign]
    RequestLifecycle.chunk_begins = poisoning_chunk_begins  # type: ignore[method-assign]
    return device


if __name__ == "__main__":
    rank_main.load_device = load_poisoning_device
    rank_main.main()
