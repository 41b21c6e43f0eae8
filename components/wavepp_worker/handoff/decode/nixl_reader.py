"""The decode side of NIXL: reads a rank's blocks straight into this worker's blocks."""

from __future__ import annotations

import logging
import threading

import torch

from wavepp_worker.handoff.connection.channel import PeerLost
from wavepp_worker.handoff.decode.nixl_read_plan import plan_read
from wavepp_worker.handoff.nixl.registered_memory import RegisteredMemory, release
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.pull_messages import KvRegions, NixlAgent
from wavepp_worker.model.stage import PagedKV

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS = 0.0002
LONGEST_POLL_SECONDS = 0.002
ABORT_SECONDS = 5.0
"""What NIXL may take to abort a transfer that is not wanted any more."""


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
        self,
        agent: NixlAgent,
        message: KvRegions,
        rank: RankAddress,
        table: torch.Tensor,
        stop: threading.Event,
    ) -> bool:
        """Read tokens ``[message.start, message.end)`` of one rank's layers into the blocks of ``table``.

        Nothing is written any more once this returns or raises. Returns False if ``stop`` ended it early.

        Raises:
            HandoffError: the regions do not fit.
            PeerLost: the transfer broke.
        """
        sources, targets, sizes = plan_read(message, rank.block_size, range(*rank.layers), self._kv, table)
        memory = self._memory
        local = memory.describe(targets, sizes, memory.memory, memory.device)
        remote = memory.describe(sources, sizes, agent.memory, agent.device)
        try:
            name = self._connect(agent)
            handle = memory.agent.initialize_xfer("READ", local, remote, name)
        except Exception as error:
            self._disconnect(agent)
            raise PeerLost(f"NIXL cannot reach rank {rank.rank} at {rank.host}: {error}") from error
        state, pause = "PROC", FIRST_POLL_SECONDS
        try:
            state = memory.agent.transfer(handle)
            while state == "PROC" and not stop.wait(pause):
                pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
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

    def _connect(self, agent: NixlAgent) -> str:
        with self._lock:
            name = self._agents.get(agent.metadata)
            if name is None:
                added = self._memory.agent.add_remote_agent(agent.metadata)
                name = added.decode() if isinstance(added, bytes) else added
                self._agents[agent.metadata] = name
            return name

    def _disconnect(self, agent: NixlAgent) -> None:
        with self._lock:
            name = self._agents.pop(agent.metadata, None)
            if name is not None:
                try:
                    self._memory.agent.remove_remote_agent(name)
                except Exception as error:
                    logger.info("NIXL agent %s was gone already: %s", name, error)
