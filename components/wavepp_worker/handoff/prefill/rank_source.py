"""One rank's side of a hand-off: offers the KV of live requests to whoever pulls it, over any transport."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection.channel import Channel
from wavepp_worker.handoff.connection.listener import Listener
from wavepp_worker.handoff.kv_source import OnSettled, Settled
from wavepp_worker.handoff.offer import RankAddress, Transport
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.prefill.holdings import Holdings
from wavepp_worker.handoff.prefill.pull_server import PullServer, ServedPull
from wavepp_worker.handoff.pull_messages import StatePiece
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.log_form import of_request
from wavepp_worker.model.device.cuda_device import to_host
from wavepp_worker.model.device.side_stream import SideStream
from wavepp_worker.model.stage import PagedKV

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 12.0
"""What ``close`` takes at most; more than ``pull_server.STOP_SECONDS``."""
SEND_BYTES = 128 << 10
"""Bytes between two signs of progress."""


class RankSource:
    """Implements ``KVSource`` for any transport; subclasses say how tokens get across (``_feed``).

    The blocks of an offered request are not read before they are ready nor after it settled. It settles once:

    * ``received``: the receiver has everything;
    * ``withdrawn``: by ``withdraw`` or ``close``, or the receiver does not want it any more;
    * ``expired``: its receiver was silent for ``timeout`` seconds, or nobody came for so long after its last
      token was ready, or its receiver does not wait any longer;
    * ``failed``: the KV could not be read, or the receiver's count of tokens or bytes is wrong.

    A receiver whose connection breaks may come back before the time limit and starts from token 0.
    """

    transport: Transport

    def __init__(
        self, rank: int, host: str, kv: PagedKV, dtype: torch.dtype, timeout: float, on_settled: OnSettled
    ) -> None:
        """Listen on a free port of ``host``.

        Raises:
            HandoffError: ``host`` is not an address of this machine.
        """
        try:
            self._listener = Listener(host, 0, f"kv-source-{rank}")
        except OSError as error:
            raise HandoffError(
                f"rank {rank} cannot listen on {host} for the hand-off: {error}. Set host to an address of "
                "this machine"
            ) from error
        self.address = RankAddress(
            rank=rank,
            host=host,
            port=self._listener.port,
            layers=(kv.layers.start, kv.layers.stop),
            block_size=kv.block_size,
            dtype=str(dtype).removeprefix("torch."),
            bytes_per_token=kv.bytes_per_token,
            windows=_windows(kv),
            transport=self.transport,
            patience=timeout,
            state_bytes=kv.states.block_bytes if kv.states is not None else 0,
        )
        self._kv = kv
        self._side = SideStream(kv.device)
        self._on_settled = on_settled
        self._holdings = Holdings(timeout, self._settled)
        self._server = PullServer(self.address, self._holdings, self._feed_all)
        self._live: dict[str, int] = {}
        self._expected: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._copier = ThreadPoolExecutor(1, thread_name_prefix=f"kv-copy-{rank}")
        self._listener.start(self._server.serve)
        self._listener.spawn(self._holdings.expire())

    def expect(self, request_id: str, secret: Secret) -> None:
        """See ``KVSource``."""
        with self._changed:
            self._expected.add(request_id)
            self._listener.call(self._holdings.expect, request_id, secret)

    def offer(
        self,
        request_id: str,
        block_table: torch.Tensor,
        prompt_tokens: int,
        ready: int,
        state: int | None = None,
    ) -> None:
        """See ``KVSource``.

        Raises:
            HandoffError: the request is offered already or was not expected, the positions are impossible, or
                the source is closed.
        """
        held = block_table.shape[-1] * self._kv.block_size
        if not 0 <= ready <= prompt_tokens or (held < prompt_tokens and self._kv.bytes_per_token):
            raise HandoffError(
                f"request {request_id} offers {ready} of {prompt_tokens} tokens in {block_table.shape[-1]} blocks "
                f"of {self._kv.block_size}, which cannot be"
            )
        with self._changed:
            if self._closed:
                raise HandoffError(f"request {request_id} cannot be offered: the source is closed")
            if request_id in self._live:
                raise HandoffError(f"request {request_id} is already offered; a request id must be unique")
            if request_id not in self._expected:
                raise HandoffError(f"request {request_id} is offered, but nobody was told its secret")
            self._expected.remove(request_id)
            self._live[request_id] = prompt_tokens
            table = block_table.clone()
            written = self._side.now()
            self._listener.call(self._holdings.hold, request_id, table, prompt_tokens, ready, state, written)

    def advance(self, request_id: str, ready: int, block_table: torch.Tensor | None = None) -> None:
        """See ``KVSource``; ignored for a request that has settled.

        Raises:
            HandoffError: ``ready`` is beyond the prompt.
        """
        with self._changed:
            prompt_tokens = self._live.get(request_id)
        if prompt_tokens is not None and ready > prompt_tokens:
            raise HandoffError(f"request {request_id} has {prompt_tokens} tokens but advances to {ready}")
        self._listener.call(self._holdings.computed, request_id, ready, block_table, self._side.now())

    def withdraw(self, request_id: str) -> None:
        """See ``KVSource``; ignored for a request that has settled."""
        with self._changed:
            self._expected.discard(request_id)
            self._listener.call(self._holdings.end, request_id, "withdrawn")

    def pending(self) -> int:
        with self._changed:
            return len(self._live)

    def check(self) -> None:
        """Raise ``AuditError`` if the books are wrong."""
        self._holdings.check()

    def close(self) -> None:
        """Settle everything and stop, within ``CLOSE_SECONDS``; idempotent."""
        latest = time.monotonic() + CLOSE_SECONDS
        with self._changed:
            self._closed = True
        self._listener.call(self._holdings.end_all)
        with self._changed:
            settled = self._changed.wait_for(lambda: not self._live, CLOSE_SECONDS - 2.0)
        if not settled:
            logger.error("rank %d: reads of %d requests did not end", self.address.rank, self.pending())
            self._listener.call(self._holdings.settle_all)
        self._listener.close(max(1.0, latest - time.monotonic()))
        self._copier.shutdown(wait=False)

    async def _feed_all(self, channel: Channel, pull: ServedPull) -> None:
        """See ``pull_server.Feed``. A state is small beside the KV, and over the connection on all transports."""
        held, states = pull.held, self._kv.states
        await self._feed(channel, pull)
        if states is None or held.state is None or held.ending is not None:
            return
        block = torch.tensor([held.state])
        await self._side.reached(held.written)
        if held.ending is not None:
            return
        payload = (await self._copied(held, lambda: to_host(states.export_blocks(block)[0]))).numpy().data
        if held.ending is None:
            await channel.send(StatePiece(request_id=held.request_id, size=len(payload)))
            await self._send_raw(channel, held, payload)

    async def _feed(self, channel: Channel, pull: ServedPull) -> None:
        """Get all tokens across as they become ready; return early if the request is ending."""
        raise NotImplementedError

    async def _copied(self, held: HeldKv, export: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Export in the copy thread what is written. The read ends when the copy does, even if this task is gone."""
        held.begin_read()

        def copy() -> torch.Tensor:
            with self._side.copies(None):
                return export()

        copying = asyncio.get_running_loop().run_in_executor(self._copier, copy)
        copying.add_done_callback(lambda _: self._holdings.end_read(held))
        return await asyncio.shield(copying)

    async def _send_raw(self, channel: Channel, held: HeldKv, payload: memoryview) -> None:
        for offset in range(0, len(payload), SEND_BYTES):
            await channel.send_raw(payload[offset : offset + SEND_BYTES])
            held.asked(time.monotonic())

    def _settled(self, request_id: str, outcome: Settled) -> None:
        with self._changed:
            del self._live[request_id]
        try:
            self._on_settled(request_id, outcome)
        except Exception:
            logger.exception(
                "settling request %s failed in its owner", request_id, extra=of_request(request_id)
            )
        with self._changed:
            self._changed.notify_all()


def _windows(kv: PagedKV) -> tuple[tuple[int, int], ...]:
    """Span and bytes per token of each window that slides."""
    return tuple(
        (span, kv.memory(number).block_bytes // kv.block_size) for number, span in enumerate(kv.spans) if span
    )
