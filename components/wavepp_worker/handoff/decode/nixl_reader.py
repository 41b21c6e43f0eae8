"""The decode side of NIXL: reads a rank's blocks straight into this worker's blocks."""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from wavepp_worker.handoff.connection.channel import PeerLost
from wavepp_worker.handoff.decode.nixl_agents import RemoteAgents
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

    Args:
        host: local address that connections come from.

    Raises:
        ConfigError: NIXL cannot be loaded.
        HandoffError: the KV memory cannot be registered.
    """

    def __init__(self, kv: PagedKV, host: str) -> None:
        self._kv = kv
        self._memory = RegisteredMemory(kv, "wavepp-decode", host)
        self._agents = RemoteAgents(self._memory.agent)

    def read(
        self,
        agent: NixlAgent,
        message: KvRegions,
        rank: RankAddress,
        prompt_tokens: int,
        table: torch.Tensor,
        stop: threading.Event,
    ) -> bool:
        """Read tokens ``[message.start, message.end)`` of one rank's layers into the blocks of ``table``.

        Of windows, only those of a prompt of ``prompt_tokens`` that decoding sees.

        Nothing is written any more once this returns or raises. Returns False if ``stop`` ended it early.

        Raises:
            HandoffError: the regions do not fit.
            PeerLost: the transfer broke.
        """
        sources, targets, sizes = plan_read(message, rank, prompt_tokens, self._kv, table)
        if not len(sources):
            # Windows alone, which have let go of all these tokens.
            return True
        memory = self._memory
        local = memory.describe(targets, sizes, memory.memory, memory.device)
        remote = memory.describe(sources, sizes, agent.memory, agent.device)
        where = f"rank {rank.rank} at {rank.host}"
        try:
            with self._agents.connected(agent.metadata) as name:
                handle = memory.agent.initialize_xfer("READ", local, remote, name)
                return self._transfer(handle, message.request_id, stop)
        except Exception as error:
            self.forget(agent)
            raise PeerLost(f"NIXL cannot read from {where}: {error}") from error

    def forget(self, agent: NixlAgent) -> None:
        """The rank of ``agent`` was lost."""
        self._agents.drop(agent.metadata)

    def close(self) -> None:
        """Unregister the memory; no read may be running."""
        self._memory.close()

    def _transfer(self, handle: Any, request_id: str, stop: threading.Event) -> bool:
        """Run a transfer; whether all of it came. Raises what NIXL raises, or ``PeerLost``."""
        agent = self._memory.agent
        try:
            state, pause = agent.transfer(handle), FIRST_POLL_SECONDS
            while state == "PROC" and not stop.wait(pause):
                pause = min(pause * 1.5, LONGEST_POLL_SECONDS)
                state = agent.check_xfer_state(handle)
        finally:
            if not release(handle, ABORT_SECONDS):
                logger.error(
                    "NIXL did not abort a transfer of request %s in %.1f s", request_id, ABORT_SECONDS
                )
        if state == "ERR":
            raise PeerLost("the transfer failed")
        return bool(state == "DONE")
