"""The decode side of NIXL: reads a rank's blocks straight into this worker's blocks."""

from __future__ import annotations

import logging
import threading

import numpy as np
import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.channel import PeerLost
from wavepp_worker.handoff.interface import RankAddress
from wavepp_worker.handoff.nixl.library import RegisteredMemory, release
from wavepp_worker.handoff.wire import Agent, Regions
from wavepp_worker.model.stage import PagedKV

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.0002
POLL_LONGEST_SECONDS = 0.002
ABORT_SECONDS = 5.0
"""What NIXL may take to abort a transfer that is not wanted any more."""


def token_runs(start: int, end: int, *blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut tokens ``[start, end)`` wherever a block of one of the sizes begins: int64 starts and lengths."""
    cuts = {start, end}
    for block in blocks:
        cuts.update(range((start // block + 1) * block, end, block))
    edges = np.array(sorted(cuts), dtype=np.int64)
    return edges[:-1], np.diff(edges)


def plan_read(
    message: Regions, block: int, layers: range, kv: PagedKV, table: torch.Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where to read from, where to, and how much: uint64 ``[n]`` addresses, addresses and bytes.

    Args:
        block: tokens per block of the rank that offers ``layers``.
        table: int64, this worker's blocks for the request.

    Raises:
        HandoffError: the rank's regions do not fit this worker's layers.
    """
    first, last = message.start // block, -(-message.end // block)
    try:
        theirs = np.frombuffer(message.addresses, dtype="<u8").reshape(last - first, len(message.sizes))
    except ValueError as error:
        raise HandoffError(
            f"request {message.request_id}: tokens {message.start} to {message.end} came with "
            f"{len(message.addresses)} bytes of addresses, which is not one per region and block"
        ) from error
    own_first, own_last = message.start // kv.block, -(-message.end // kv.block)
    skip, count = 2 * (layers.start - kv.layers.start), 2 * len(layers)
    regions = [kv.block_regions(index)[skip : skip + count] for index in table[own_first:own_last].tolist()]
    width = np.array([size for _, size in regions[0]], dtype=np.uint64) // kv.block
    if len(message.sizes) != count or (np.array(message.sizes, dtype=np.uint64) != width * block).any():
        raise HandoffError(
            f"request {message.request_id}: the blocks of layers {layers.start} to {layers.stop - 1} have "
            "other shapes than here; both sides must have the same model and dtype"
        )
    ours = np.array([[address for address, _ in block_regions] for block_regions in regions], dtype=np.uint64)
    starts, lengths = token_runs(message.start, message.end, block, kv.block)
    sources = theirs[starts // block - first] + (starts % block).astype(np.uint64)[:, None] * width
    targets = ours[starts // kv.block - own_first] + (starts % kv.block).astype(np.uint64)[:, None] * width
    sizes = lengths.astype(np.uint64)[:, None] * width
    return sources.ravel(), targets.ravel(), sizes.ravel()


class NixlReader:
    """Reads into one worker's KV memory. Thread-safe; ``read`` blocks and belongs in a thread of its own.

    Raises:
        ConfigError: NIXL cannot be loaded.
        HandoffError: the KV memory cannot be registered.
    """

    def __init__(self, kv: PagedKV) -> None:
        self._kv = kv
        self._memory = RegisteredMemory(kv, "wavepp-decode")
        self._agents: dict[bytes, str] = {}
        self._lock = threading.Lock()

    def read(
        self, agent: Agent, message: Regions, rank: RankAddress, table: torch.Tensor, stop: threading.Event
    ) -> bool:
        """Read tokens ``[message.start, message.end)`` of one rank's layers into the blocks of ``table``.

        Nothing is written any more once this returns or raises. Returns False if ``stop`` ended it early.

        Raises:
            HandoffError: the regions do not fit.
            PeerLost: the transfer broke.
        """
        sources, targets, sizes = plan_read(message, rank.block, range(*rank.layers), self._kv, table)
        memory = self._memory
        local = memory.describe(targets, sizes, memory.memory, memory.device)
        remote = memory.describe(sources, sizes, agent.memory, agent.device)
        try:
            name = self._connect(agent)
            handle = memory.agent.initialize_xfer("READ", local, remote, name)
        except Exception as error:
            self._disconnect(agent)
            raise PeerLost(f"NIXL cannot reach rank {rank.rank} at {rank.host}: {error}") from error
        state, pause = "PROC", POLL_SECONDS
        try:
            state = memory.agent.transfer(handle)
            while state == "PROC" and not stop.wait(pause):
                pause = min(pause * 1.5, POLL_LONGEST_SECONDS)
                state = memory.agent.check_xfer_state(handle)
        except Exception as error:
            self._disconnect(agent)
            raise PeerLost(
                f"the NIXL transfer from rank {rank.rank} at {rank.host} broke: {error}"
            ) from error
        finally:
            if not release(handle, ABORT_SECONDS):
                logger.error(
                    "NIXL did not abort a transfer of request %s in %.1f s", message.request_id, ABORT_SECONDS
                )
        if state == "ERR":
            self._disconnect(agent)
            raise PeerLost(f"the NIXL transfer from rank {rank.rank} at {rank.host} failed")
        return state == "DONE"

    def close(self) -> None:
        """Unregister the memory; no read may be running."""
        self._memory.close()

    def _connect(self, agent: Agent) -> str:
        with self._lock:
            name = self._agents.get(agent.metadata)
            if name is None:
                added = self._memory.agent.add_remote_agent(agent.metadata)
                name = added.decode() if isinstance(added, bytes) else added
                self._agents[agent.metadata] = name
            return name

    def _disconnect(self, agent: Agent) -> None:
        with self._lock:
            name = self._agents.pop(agent.metadata, None)
            if name is not None:
                try:
                    self._memory.agent.remove_remote_agent(name)
                except Exception as error:
                    logger.info("NIXL agent %s was gone already: %s", name, error)
