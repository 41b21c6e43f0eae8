"""A rank's source over NIXL: the receiver reads the KV from this rank's registered memory."""

from __future__ import annotations

import asyncio
import time

import torch

from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.kv_source import OnSettled
from wavepp_worker.handoff.nixl.registered_memory import RegisteredMemory
from wavepp_worker.handoff.prefill.pull_server import ServedPull
from wavepp_worker.handoff.prefill.rank_source import RankSource
from wavepp_worker.handoff.pull_messages import KvPiece, KvRegions, NixlAgent
from wavepp_worker.model.device.cuda_device import use_device
from wavepp_worker.model.stage import PagedKV

REGION_BYTES = 32 << 20
"""KV bytes that one ``KvRegions`` message opens for reading, unless one block alone is larger."""
REGION_ADDRESSES = 1 << 16
"""Addresses in one ``KvRegions`` message, which keeps it far below the frame limit."""

PROGRESS_SECONDS = 0.0005
"""Between two calls that drive NIXL while a receiver reads."""


class NixlSource(RankSource):
    """Control messages over the pull connection, KV by the receiver's NIXL READ.

    A block counts as being read from the moment its address is sent until the receiver says ``RegionsRead`` or
    its connection is gone. A receiver that neither stops nor goes is waited for a bounded time; it can read on
    then, but is never told ``PullValid``, so what it reads is not used.
    """

    transport = "nixl"

    def __init__(
        self, rank: int, host: str, kv: PagedKV, dtype: torch.dtype, timeout: float, on_settled: OnSettled
    ) -> None:
        self._memory = RegisteredMemory(kv, f"wavepp-rank-{rank}", host)
        super().__init__(rank, host, kv, dtype, timeout, on_settled)
        self._listener.call(use_device, kv.device)
        self._listener.spawn(self._progress())

    def close(self) -> None:
        super().close()
        self._memory.close()

    async def _progress(self) -> None:
        while True:
            await self._holdings.changed.wait_for(self._server.reading)
            self._memory.progress()
            await asyncio.sleep(PROGRESS_SECONDS)

    async def _feed(self, channel: Channel, pull: ServedPull) -> None:
        held, block = pull.held, self._kv.block_size
        memory = self._memory
        await channel.send(
            NixlAgent(
                request_id=held.request_id,
                metadata=memory.agent.get_agent_metadata(),
                memory=memory.memory,
                device=memory.device,
            )
        )
        if not self._kv.bytes_per_token:
            while await self._holdings.more(held):
                start, end = held.sent, held.ready
                await channel.send(KvPiece(request_id=held.request_id, start=start, end=end, size=0))
                held.delivered(end, time.monotonic())
            return
        regions = self._kv.block_regions()
        sizes = tuple(regions.sizes.tolist())
        step = max(1, min(REGION_BYTES // sum(sizes), REGION_ADDRESSES // len(sizes)))
        while await self._holdings.more(held):
            start = held.sent
            first = start // block
            end = min(held.ready, (first + step) * block)
            await self._side.reached(held.written)
            if held.ending is not None:
                return
            tables = held.table.view(len(self._kv.spans), -1)[:, first : -(-end // block)]
            addresses = regions.addresses(tables.numpy())
            held.begin_read()
            pull.reading = True
            self._holdings.changed.fire()
            await channel.send(
                KvRegions(
                    request_id=held.request_id,
                    start=start,
                    end=end,
                    sizes=sizes,
                    addresses=addresses.astype("<u8").tobytes(),
                )
            )
            await self._holdings.changed.wait_for(lambda: held.ending or not pull.reading)
