"""Executes one rank's block moves: copies block bytes between device, host and disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from wavepp_worker.cache.disk_store import DiskStore, StoredSlot
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.errors import CacheCorrupt
from wavepp_worker.model.stage import BlockMemory
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.state.block_origins import BlockOrigins, origin_bytes
from wavepp_worker.runtime.state.host_memory import HostMemory
from wavepp_worker.runtime.state.move_batches import batches, runs

STAGING_BYTES = 16 << 20
"""Most bytes gathered at once between two tiers (or one block): few copies, yet buffers the allocators reuse.

On the CPU 32 MiB at once is a third of the speed, as every buffer is mapped anew."""


class BlocksLost(CacheCorrupt):
    """Some moves had no good bytes to copy; all others were executed.

    Attributes:
        moves: those whose targets now hold nothing of use, in order. Whoever reads these targets has to
            forget the keys first.
    """

    def __init__(self, message: str, moves: tuple[Move, ...]) -> None:
        super().__init__(message)
        self.moves = moves


@dataclass(frozen=True)
class WindowTiers:
    """Where the blocks of one window are; slots of each tier count from 0."""

    memory: BlockMemory
    host_blocks: int = 0
    disk: DiskStore | None = None


def open_tiers(config: RankConfig, memory: BlockMemory) -> TierStore:
    """The tiers of a rank with one window; its disk tier is the file ``rank<n>.blocks`` in ``disk_path``.

    Raises:
        ConfigError: the host tier cannot be had, or ``DiskStore`` refuses the file.
    """
    disk = origins = None
    if config.disk_blocks:
        first, end = config.layers
        # One rank tells the engine what blocks are of.
        origins = BlockOrigins(config.block_size) if config.first else None
        fingerprint = (
            f"{config.model_id}, {config.dtype}, layers {first} to {end - 1}, "
            f"blocks of {config.block_size} tokens, rank {config.rank} of {config.ranks}"
        )
        path = Path(config.disk_path) / f"rank{config.rank}.blocks"
        room = origin_bytes(config.block_size) if config.first else 0
        disk = DiskStore(path, config.disk_blocks, memory.block_bytes, fingerprint, room)
    return TierStore([WindowTiers(memory, config.host_blocks, disk)], origins)


class TierStore:
    """The bytes of one rank's blocks on all tiers; owns the disk stores given.

    For the thread that materialises (LOOP; WAVE with ``ownership=none``), but for ``damaged``, which WAVE calls.
    On CUDA, copies between device and host are queued on the current stream, in order with the waves queued
    there; the host waits for them only where it touches the same memory itself.

    Args:
        windows: by window index. All memories are on one device.
        origins: what blocks are of, which the disk keeps beside their bytes; None where nobody asks for that.

    Raises:
        ConfigError: the host tier cannot be had.
    """

    def __init__(self, windows: Sequence[WindowTiers], origins: BlockOrigins | None = None) -> None:
        self._windows = tuple(windows)
        self.origins = origins
        self._device = self._windows[0].memory.device
        self._queued: torch.cuda.Event | None = None
        self._hosts = [
            HostMemory(window.host_blocks, window.memory.block_bytes, self._device)
            for window in self._windows
        ]

    def run(self, moves: Sequence[Move]) -> None:
        """Copy as if one move after the other; neighbours of one direction are copied together.

        Raises:
            BlocksLost: a disk copy was corrupt; everything that does not depend on it was copied.
            ValueError: a move names a slot that does not exist, or stays on its tier; nothing was copied.
        """
        for move in moves:
            self._validate(move)
        if self._queued is not None:
            torch.cuda.current_stream(self._device).wait_event(self._queued)
        lost: dict[tuple[int, Tier, int], Move] = {}
        reasons: list[str] = []
        for batch in batches(moves, self._most_at_once):
            good = [move for move in batch if (move.window, *move.source) not in lost]
            failed = [move for move in batch if (move.window, *move.source) in lost]
            failed += self._copy(good, reasons) if good else []
            for move in batch:
                lost.pop((move.window, *move.target), None)
            lost.update({(move.window, *move.target): move for move in failed})
        if lost:
            raise BlocksLost(
                f"{len(lost)} blocks could not be copied: {'; '.join(reasons[:3])}", tuple(lost.values())
            )

    def damaged(self, copies: Iterable[Copy]) -> list[Copy]:
        """Those of these copies on disk that an earlier process wrote and that are not intact; they are dropped."""
        found = []
        for copy in copies:
            disk = self._windows[copy.window].disk
            if disk is not None and disk.damaged(copy.slot, copy.key):
                found.append(copy)
        return found

    def restore(self, window: int) -> list[StoredSlot]:
        """What the disk tier of ``window`` kept, see ``DiskStore.records``; where origins are kept, with its origin."""
        disk, origins = self._windows[window].disk, self.origins
        stored = disk.records() if disk is not None else []
        if origins is None:
            return stored
        return [block for block in stored if origins.load(block.key, block.origin)]

    def check(self) -> None:
        """Raise AuditError unless every block on disk is intact. Reads all of them."""
        for window in self._windows:
            if window.disk is not None:
                window.disk.check()

    def close(self) -> None:
        """Wait for queued copies, then give up host memory and disk files. Idempotent."""
        self._wait_for_copies()
        for host in self._hosts:
            host.close()
        for window in self._windows:
            if window.disk is not None:
                window.disk.close()

    def _validate(self, move: Move) -> None:
        window = self._windows[move.window]
        sizes = {
            Tier.DEVICE: window.memory.num_blocks,
            Tier.HOST: window.host_blocks,
            Tier.DISK: window.disk.slots if window.disk is not None else 0,
        }
        for tier, slot in (move.source, move.target):
            if not 0 <= slot < sizes[tier]:
                raise ValueError(f"{move} names slot {slot}; window {move.window} has {sizes[tier]} there")
        if move.source[0] == move.target[0]:
            raise ValueError(f"{move} stays on its tier")

    def _most_at_once(self, window: int) -> int:
        return STAGING_BYTES // self._windows[window].memory.block_bytes

    def _copy(self, batch: list[Move], reasons: list[str]) -> list[Move]:
        """Copy one batch; returns the moves that failed and appends why."""
        window, host = self._windows[batch[0].window], self._hosts[batch[0].window].rows
        memory, disk = window.memory, window.disk
        sources = [move.source[1] for move in batch]
        targets = [move.target[1] for move in batch]
        source, target = batch[0].source[0], batch[0].target[0]
        if (source, target) == (Tier.DEVICE, Tier.HOST):
            rows = memory.export_blocks(torch.tensor(sources))
            for at, slot, count in runs(targets):
                host[slot : slot + count].copy_(rows[at : at + count], non_blocking=True)
            self._note_queued()
        elif (source, target) == (Tier.HOST, Tier.DEVICE):
            rows = torch.empty(len(batch), memory.block_bytes, dtype=torch.uint8, device=self._device)
            for at, slot, count in runs(sources):
                rows[at : at + count].copy_(host[slot : slot + count], non_blocking=True)
            memory.import_blocks(torch.tensor(targets), rows)
            self._note_queued()
        elif target == Tier.DISK:
            assert disk is not None
            if source == Tier.DEVICE:
                self._write(disk, batch, memory.export_blocks(torch.tensor(sources)).cpu())
            else:
                self._wait_for_copies()
                self._write(disk, batch, [host[slot] for slot in sources])
        else:
            assert disk is not None
            if target == Tier.HOST:
                self._wait_for_copies()
                return _read(disk, batch, [host[slot] for slot in targets], reasons)
            rows = torch.empty(len(batch), memory.block_bytes, dtype=torch.uint8)
            failed = _read(disk, batch, rows, reasons)
            if failed:
                kept = [at for at, move in enumerate(batch) if move not in failed]
                targets, rows = [targets[at] for at in kept], rows[kept]
            if targets:
                memory.import_blocks(torch.tensor(targets), rows.to(self._device))
            return failed
        return []

    def _write(self, disk: DiskStore, batch: list[Move], rows: Iterable[torch.Tensor]) -> None:
        for move, row in zip(batch, rows, strict=True):
            origin = self.origins.packed(move.key) if self.origins is not None else b""
            disk.write(move.target[1], move.key, move.parent, row.numpy(), origin)

    def _note_queued(self) -> None:
        if self._device.type == "cuda":
            self._queued = torch.cuda.current_stream(self._device).record_event()

    def _wait_for_copies(self) -> None:
        """Before this thread touches host memory itself: wait until no queued copy does."""
        if self._queued is not None:
            self._queued.synchronize()
            self._queued = None


def _read(disk: DiskStore, batch: list[Move], rows: Iterable[torch.Tensor], reasons: list[str]) -> list[Move]:
    """Read one block per move into ``rows``; returns the moves that failed and appends why."""
    failed = []
    for move, row in zip(batch, rows, strict=True):
        try:
            disk.read_into(move.source[1], move.key, row.numpy())
        except CacheCorrupt as error:
            disk.drop(move.source[1])
            failed.append(move)
            reasons.append(str(error))
    return failed
