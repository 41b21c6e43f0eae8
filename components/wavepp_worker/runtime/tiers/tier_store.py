"""Executes one rank's block moves: copies block bytes between device, host and disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import CacheCorrupt
from wavepp_worker.model.device.cuda_device import to_device, to_host
from wavepp_worker.model.stage import BlockMemory
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.tiers.block_origins import BlockOrigins, origin_bytes
from wavepp_worker.runtime.tiers.copy_stream import CopyStream
from wavepp_worker.runtime.tiers.disk_store import StoredSlot
from wavepp_worker.runtime.tiers.disk_tier import DiskTier
from wavepp_worker.runtime.tiers.host_memory import HostMemory
from wavepp_worker.runtime.tiers.move_batches import batches, runs

STAGING_BYTES = 16 << 20
"""Most bytes gathered at once between two tiers (or one block): few copies, yet buffers the allocators reuse.

On the CPU 32 MiB at once is a third of the speed, as every buffer is mapped anew."""

PINNED_BYTES = 16 * STAGING_BYTES
"""Most page-locked bytes that one run has on their way from disk to a GPU."""


def _file_name(rank: int, spec: WindowSpec) -> str:
    """Of the disk tier of one window."""
    ending = {"full": "blocks", "sliding": f"last-{spec.span}", "recurrent": "states"}[spec.kind]
    return f"rank{rank}.{ending}"


class BlocksLost(CacheCorrupt):
    """Moves off the disk had no good bytes to copy. Who prefetches first, as all have to, cannot meet it.

    All other moves were executed.

    Attributes:
        moves: those whose targets above the disk now hold nothing of use, in order.
    """

    def __init__(self, message: str, moves: tuple[Move, ...]) -> None:
        super().__init__(message)
        self.moves = moves


@dataclass(frozen=True)
class WindowTiers:
    """Where the blocks of one window are; slots of each tier count from 0.

    Attributes:
        origins: what blocks are of, which the disk keeps beside their bytes; None where nobody asks for that.
    """

    memory: BlockMemory
    host_blocks: int = 0
    disk: DiskTier | None = None
    origins: BlockOrigins | None = None


def open_tiers(config: RankConfig, windows: Sequence[tuple[WindowSpec, BlockMemory]]) -> TierStore:
    """The tiers of a rank's windows; their disk tiers are files in ``disk_path``.

    Raises:
        ConfigError: the host tier cannot be had, or ``DiskStore`` refuses a file.
    """
    first, end = config.layers
    # What is kept in FP8 was computed in a dtype all the same.
    dtype = config.dtype if config.kv_dtype == "auto" else f"{config.kv_dtype} of {config.dtype}"
    fingerprint = (
        f"{config.model_id}, {dtype}, layers {first} to {end - 1}, "
        f"blocks of {config.block_size} tokens, rank {config.rank} of {config.ranks}, "
        f"keys {config.key_secret_id}"
    )
    opened = []
    for spec, memory in windows:
        disk = origins = None
        if spec.disk_blocks:
            # One rank tells the engine what blocks are of.
            origins = BlockOrigins(config.block_size) if config.first and spec.kind == "full" else None
            room = origin_bytes(config.block_size) if origins is not None else 0
            path = Path(config.disk_path) / _file_name(config.rank, spec)
            disk = DiskTier(path, spec.disk_blocks, memory.block_bytes, fingerprint, room)
        opened.append(WindowTiers(memory, spec.host_blocks, disk, origins))
    return TierStore(opened)


class TierStore:
    """The bytes of one rank's blocks on all tiers; owns the disk tiers given.

    For the thread that materialises (LOOP; WAVE with ``ownership=none``); others may call only ``prefetch``,
    ``drop_prefetched``, ``follow``, ``under_way`` and, while that thread does nothing here, ``keep_on_disk``.
    On a GPU, copies between device and host are queued beside the waves (``CopyStream``); the host waits for them only
    where it touches the same memory itself.

    Args:
        windows: by window index. All memories are on one device.

    Raises:
        ConfigError: the host tier cannot be had.
    """

    def __init__(self, windows: Sequence[WindowTiers]) -> None:
        self._windows = tuple(windows)
        self.origins = next((window.origins for window in windows if window.origins is not None), None)
        self._disks = [window.disk for window in windows if window.disk is not None]
        self._device = next((window.memory.device for window in self._windows), torch.device("cpu"))
        self._stream = CopyStream(self._device)
        self._pinned = 0
        # By window, of each block of the device and of host memory: the last run that read or wrote it.
        self._touched = [
            {
                Tier.DEVICE: np.zeros(window.memory.num_blocks, dtype=np.int64),
                Tier.HOST: np.zeros(window.host_blocks, dtype=np.int64),
            }
            for window in self._windows
        ]
        self._hosts = [
            HostMemory(window.host_blocks, window.memory.block_bytes, self._device)
            for window in self._windows
        ]

    def run(self, moves: Sequence[Move]) -> list[Copy]:
        """Copy as if one move after the other; neighbours of one direction are copied together.

        Returns those of the targets on disk that hold nothing of use, because the disk failed.

        Raises:
            BlocksLost: the disk has lost blocks that were not prefetched; what does not depend on them was copied.
            ValueError: a move names a slot that does not exist, or stays on its tier; nothing was copied.
        """
        for move in moves:
            self._validate(move)
        if not moves:
            return []
        self._pinned = 0
        self._note_touched(moves)
        lost: dict[tuple[int, Tier, int], Move] = {}
        with self._stream.run():
            for batch in batches(moves, self._most_at_once):
                good = [move for move in batch if (move.window, *move.source) not in lost]
                failed = [move for move in batch if (move.window, *move.source) in lost]
                failed += self._copy(good) if good else []
                for move in batch:
                    lost.pop((move.window, *move.target), None)
                lost.update({(move.window, *move.target): move for move in failed})
        above = tuple(move for move in lost.values() if move.target[0] != Tier.DISK)
        if above:
            raise BlocksLost(
                f"{len(above)} blocks could not be copied: {above[0]} and others are not on disk", above
            )
        return [Copy(move.window, move.key, *move.target) for move in lost.values()]

    def last_run(self, window: int, blocks: Sequence[int]) -> int:
        """The last run of moves that read or wrote some of these blocks of the device, less than 0 for none.

        0 if none did, or moves are over when they have been run.
        """
        return self._last_run(window, Tier.DEVICE, blocks)

    def follow(self, runs: int) -> None:
        """Have waves that are queued from now on find what the first ``runs`` have copied."""
        self._stream.follow(runs)

    def under_way(self, runs: int) -> bool:
        """Whether some of so many runs are, and no wave has followed them."""
        return self._stream.under_way(runs)

    def prefetch(self, request_id: str, copies: Iterable[Copy]) -> list[Copy]:
        """Read what a request leases on disk into memory, see ``DiskTier``; returns what is not there intact."""
        by_window: dict[int, list[Copy]] = {}
        for copy in copies:
            by_window.setdefault(copy.window, []).append(copy)
        return [
            lost
            for window, those in by_window.items()
            for lost in self._disk(window).prefetch(request_id, those)
        ]

    def drop_prefetched(self, request_id: str) -> None:
        """The request needs no block on disk any more."""
        for disk in self._disks:
            disk.drop_prefetched(request_id)

    def keep_on_disk(self, copies: Collection[Copy]) -> None:
        """Forget all other blocks on disk, see ``DiskStore.keep_only``. While nobody else copies."""
        for number, window in enumerate(self._windows):
            if window.disk is not None:
                window.disk.keep_only({copy.slot for copy in copies if copy.window == number})

    def switched_off(self) -> list[int]:
        """The windows whose disk has failed."""
        return [
            number
            for number, window in enumerate(self._windows)
            if window.disk is not None and window.disk.off
        ]

    def prefetched(self) -> int:
        """Blocks kept in memory for requests."""
        return sum(disk.prefetched for disk in self._disks)

    def restore(self, window: int) -> list[StoredSlot]:
        """What the disk tier of ``window`` kept, see ``DiskStore.records``; where origins are kept, with its origin."""
        disk, origins = self._windows[window].disk, self._windows[window].origins
        stored = disk.restore() if disk is not None else []
        if origins is None:
            return stored
        return [block for block in stored if origins.load(block.key, block.origin)]

    def check(self) -> None:
        """Raise AuditError unless every block on disk is intact. Reads all of them."""
        for disk in self._disks:
            disk.check()

    def close(self) -> None:
        """Wait for queued copies, then give up host memory and disk files. Idempotent."""
        self._stream.wait()
        for host in self._hosts:
            host.close()
        for disk in self._disks:
            disk.close()

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

    def _note_touched(self, moves: Sequence[Move]) -> None:
        for move in moves if self._stream.beside else ():
            for tier, slot in (move.source, move.target):
                if tier != Tier.DISK:
                    self._touched[move.window][tier][slot] = self._stream.runs + 1

    def _last_run(self, window: int, tier: Tier, slots: Sequence[int]) -> int:
        if not self._stream.beside:
            return 0
        those = np.asarray(slots, dtype=np.int64)
        return int(self._touched[window][tier][those[those >= 0]].max(initial=0))

    def _most_at_once(self, window: int) -> int:
        return STAGING_BYTES // self._windows[window].memory.block_bytes

    def _disk(self, window: int) -> DiskTier:
        disk = self._windows[window].disk
        assert disk is not None, f"window {window} has no disk tier"
        return disk

    def _copy(self, batch: list[Move]) -> list[Move]:
        """Copy one batch; returns the moves that failed."""
        window, host = self._windows[batch[0].window], self._hosts[batch[0].window].rows
        memory = window.memory
        sources = [move.source[1] for move in batch]
        targets = [move.target[1] for move in batch]
        source, target = batch[0].source[0], batch[0].target[0]
        if (source, target) == (Tier.DEVICE, Tier.HOST):
            self._stream.touch_blocks()
            rows = memory.export_blocks(torch.tensor(sources))
            for at, slot, count in runs(targets):
                host[slot : slot + count].copy_(rows[at : at + count], non_blocking=True)
        elif (source, target) == (Tier.HOST, Tier.DEVICE):
            rows = torch.empty(len(batch), memory.block_bytes, dtype=torch.uint8, device=self._device)
            for at, slot, count in runs(sources):
                rows[at : at + count].copy_(host[slot : slot + count], non_blocking=True)
            self._stream.touch_blocks()
            memory.import_blocks(torch.tensor(targets), rows)
        elif target == Tier.DISK:
            disk = self._disk(batch[0].window)
            if disk.off:
                return batch
            if source == Tier.DEVICE:
                self._stream.touch_blocks()
                rows = to_host(memory.export_blocks(torch.tensor(sources)))
                self._stream.wait()
                return self._write(disk, batch, rows)
            self._stream.wait(self._last_run(batch[0].window, Tier.HOST, sources))
            return self._write(disk, batch, [host[slot] for slot in sources])
        else:
            disk = self._disk(batch[0].window)
            if target == Tier.HOST:
                self._stream.wait(self._last_run(batch[0].window, Tier.HOST, targets))
                return _read(disk, batch, [host[slot] for slot in targets])
            rows = torch.empty(len(batch), memory.block_bytes, dtype=torch.uint8)
            failed = _read(disk, batch, rows)
            if failed:
                kept = [at for at, move in enumerate(batch) if move not in failed]
                targets, rows = [targets[at] for at in kept], rows[kept]
            if targets:
                there = to_device(rows, self._device)
                self._stream.touch_blocks()
                memory.import_blocks(torch.tensor(targets), there)
                self._pinned += rows.numel()
                if self._pinned > PINNED_BYTES:
                    self._stream.wait()
                    self._pinned = 0
            return failed
        return []

    def _write(self, disk: DiskTier, batch: list[Move], rows: Iterable[torch.Tensor]) -> list[Move]:
        failed, origins = [], self._windows[batch[0].window].origins
        for move, row in zip(batch, rows, strict=True):
            origin = origins.packed(move.key) if origins is not None else b""
            if not disk.write(move.target[1], move.key, move.parent, row.numpy(), origin):
                failed.append(move)
        return failed


def _read(disk: DiskTier, batch: list[Move], rows: Iterable[torch.Tensor]) -> list[Move]:
    """Read one block per move into ``rows``; returns the moves that failed."""
    return [
        move
        for move, row in zip(batch, rows, strict=True)
        if not disk.read_into(move.source[1], move.key, row.numpy())
    ]
