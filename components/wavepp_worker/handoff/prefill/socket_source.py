"""A rank's source over sockets: it copies the KV out and sends it along the pull connection."""

from __future__ import annotations

import functools
import time

from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.prefill.pull_server import ServedPull
from wavepp_worker.handoff.prefill.rank_source import RankSource
from wavepp_worker.handoff.pull_messages import PIECE_BYTES, KvPiece


class SocketSource(RankSource):
    """KV travels over the pull connection itself, as bytes behind ``KvPiece`` messages."""

    transport = "socket"

    async def _feed(self, channel: Channel, pull: ServedPull) -> None:
        held = pull.held
        step = max(1, PIECE_BYTES // max(1, self._kv.bytes_per_token))
        while await self._holdings.more(held):
            start = held.sent
            end = min(held.ready, start + step)
            export = functools.partial(self._kv.export_tokens, held.table, start, end)
            # Here, as whoever waits in the copy thread has all others wait.
            await self._side.reached(held.written)
            if held.ending is not None:
                return
            payload = (await self._copied(held, export)).numpy().data
            if held.ending is not None:
                return
            await channel.send(KvPiece(request_id=held.request_id, start=start, end=end, size=len(payload)))
            await self._send_raw(channel, held, payload)
            held.delivered(end, time.monotonic())
