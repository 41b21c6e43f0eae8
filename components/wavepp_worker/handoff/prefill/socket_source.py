"""A rank's source over sockets: it copies the KV out and sends it along the pull connection."""

from __future__ import annotations

import asyncio
import time

import torch

from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.prefill.pull_server import ServedPull
from wavepp_worker.handoff.prefill.rank_source import RankSource
from wavepp_worker.handoff.pull_messages import PIECE_BYTES, KvPiece

SEND_BYTES = 128 << 10
"""Bytes between two signs of progress."""


class SocketSource(RankSource):
    """KV travels over the pull connection itself, as bytes behind ``KvPiece`` messages."""

    transport = "socket"

    async def _feed(self, channel: Channel, pull: ServedPull) -> None:
        held = pull.held
        step = max(1, PIECE_BYTES // self._kv.bytes_per_token)
        while await self._holdings.more(held):
            start = held.sent
            end = min(held.ready, start + step)
            payload = (await self._copy(held, start, end)).numpy().data
            if held.ending is not None:
                return
            await channel.send(KvPiece(request_id=held.request_id, start=start, end=end, size=len(payload)))
            for offset in range(0, len(payload), SEND_BYTES):
                await channel.send_raw(payload[offset : offset + SEND_BYTES])
                held.asked(time.monotonic())
            held.delivered(end, time.monotonic())

    async def _copy(self, held: HeldKv, start: int, end: int) -> torch.Tensor:
        """Export in the copy thread. The read ends when the copy does, whatever becomes of this task."""
        held.begin_read()
        copying = asyncio.get_running_loop().run_in_executor(
            self._copier, self._kv.export_tokens, held.table, start, end
        )
        copying.add_done_callback(lambda _: self._holdings.end_read(held))
        return await asyncio.shield(copying)
