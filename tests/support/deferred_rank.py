"""One rank's real books and real tiers, over a device that computes behind the host."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.admission.ownership import ImmediateOwnership, LeaseOwnership, Ownership
from wavepp_worker.runtime.protocol.events import Failed, HandoffSettled
from wavepp_worker.runtime.tiers.disk_tier import DiskTier
from wavepp_worker.runtime.tiers.tier_store import TierStore, WindowTiers

from tests.support.deferred_blocks import BLOCK_BYTES, DeferredBlocks, WrongContent, complete
from tests.support.deferred_gpu import DeferredGpu
from tests.support.deferred_source import DeferredSource
from tests.support.rank_books import RankBooks

KINDS = (
    ("full",),
    ("sliding",),
    ("recurrent",),
    ("full", "recurrent"),
    ("full", "sliding"),
    ("full", "sliding", "recurrent"),
)


def draw_specs(draw: random.Random, wave_blocks: int) -> list[WindowSpec]:
    """Windows that are too small for all that is going on; all have the same tiers, or none.

    ``wave_blocks``: what the chunks of a wave touch of a window at most.
    """
    host, disk = draw.choice((0, 3, 6, 12)), draw.choice((0, 0, 8, 20))
    made_of = {
        "full": lambda: WindowSpec("full", "full", draw.choice((14, 20)), host, disk),
        "sliding": lambda: WindowSpec(
            "sliding",
            "sliding",
            24,
            host,
            disk,
            span=draw.choice((4, 6, 8)),
            wave=draw.choice((None, wave_blocks)),
        ),
        "recurrent": lambda: WindowSpec(
            "recurrent", "recurrent", draw.choice((6, 9)), host, disk, interval=8
        ),
    }
    return [made_of[kind]() for kind in draw.choice(KINDS)]


class DeferredRank:
    """The parts of a rank that order what its streams do.

    Attributes:
        source: None where nothing is handed off.
    """

    def __init__(self, gpu: DeferredGpu, folder: Path, *, leases: bool, wave_blocks: int) -> None:
        self._gpu = gpu
        specs = draw_specs(gpu.draw, wave_blocks)
        self.blocks = DeferredBlocks(specs)
        self._disks = [
            DiskTier(folder / f"{number}", spec.disk_blocks, BLOCK_BYTES, "test")
            if spec.disk_blocks
            else None
            for number, spec in enumerate(specs)
        ]
        self.store = TierStore(
            [
                WindowTiers(memory, spec.host_blocks, disk)
                for memory, spec, disk in zip(self.blocks.memories, specs, self._disks, strict=True)
            ]
        )
        self.books = RankBooks(specs, tiers=self.store, handoff=False, leases=leases)
        own = LeaseOwnership if leases else ImmediateOwnership
        self.ownership: Ownership = own(self.books.requests, self.books.cache, self.books.lifecycle)
        self.source = DeferredSource(self.blocks) if gpu.draw.random() < 0.6 else None
        self.books.lifecycle.source = self.source

    def end(self) -> None:
        """Raise unless nothing is held, nothing failed, and all that is reusable is what it is said to be."""
        if self._gpu.fault is not None:
            raise self._gpu.fault
        self.books.at_rest()
        assert not self.books.events.of(Failed)
        assert "failed" not in {settled.outcome for settled in self.books.events.of(HandoffSettled)}
        self.store.run(self.books.cache.flush())
        self._gpu.drain()
        self._check_reusable()
        self.store.close()

    def _check_reusable(self) -> None:
        """Of whatever can be reused: the bytes where they are, and where they are once more."""
        self.store.check()
        for window, (memory, host, disk) in enumerate(
            zip(self.blocks.memories, self.store._hosts, self._disks, strict=True)
        ):
            device = memory._pools[0].view(memory.num_blocks, BLOCK_BYTES)
            for node in self.books.cache._windows[window].tree.nodes.values():
                found = []
                slot = node.slot if node.tier == Tier.DISK else node.disk_copy
                if slot >= 0:
                    assert disk is not None
                    on_disk = np.zeros(BLOCK_BYTES, dtype=np.uint8)
                    assert disk.read_into(slot, node.key, on_disk)
                    found.append(on_disk)
                if node.tier != Tier.DISK:
                    found.append((device if node.tier == Tier.DEVICE else host.rows)[node.slot].numpy())
                for each in found:
                    if each.tobytes() != complete(window, node.key):
                        raise WrongContent(
                            f"block {node.slot} of {node.tier.name} of window {window} at rest"
                        )
