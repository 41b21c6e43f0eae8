"""One rank's side of a hand-off: holds the KV of live requests and serves whoever pulls it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff import deadline
from wavepp_worker.handoff.channel import Channel, PeerLost
from wavepp_worker.handoff.interface import OnSettled, RankAddress, Settled
from wavepp_worker.handoff.ledger import Held, Ledger
from wavepp_worker.handoff.listener import Listener
from wavepp_worker.handoff.pulse import Pulse
from wavepp_worker.handoff.wire import (
    PIECE_BYTES,
    CancelPull,
    Codec,
    End,
    Piece,
    Pull,
    PullFailed,
    Read,
    Received,
    Released,
    check_request,
)
from wavepp_worker.model.stage import PagedKV

logger = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
"""A connection that has not said what it wants by then is closed."""
STOP_SECONDS = 5.0
"""What a receiver has to stop reading, once told that there is no more to pull."""
CLOSE_SECONDS = 12.0
"""What ``close`` takes at most; more than ``STOP_SECONDS``."""
REOFFER_SECONDS = 5.0
"""How long a pull of a request that just settled waits for a new one of the same id."""
SEND_BYTES = 128 << 10
"""Bytes between two signs of progress."""
REMEMBERED = 1024
"""Settled requests whose outcome is remembered, to tell late pulls."""


@dataclass
class _Pull:
    """A connected receiver. ``reading``: it was told where tokens are and has not said ``Read``."""

    held: Held
    task: asyncio.Task[None]
    reading: bool = False


class RankSource:
    """Implements ``KVSource`` for any transport; subclasses say how tokens get across (``_feed``).

    The blocks of an offered request are not read before they are ready nor after it settled. It settles once:

    * ``received``: the receiver has everything;
    * ``withdrawn``: by ``withdraw`` or ``close``, or the receiver does not want it any more;
    * ``expired``: nothing moved for ``timeout`` seconds, counted from the offer on, connected or not;
    * ``failed``: the KV could not be read, or the receiver's count of tokens or bytes is wrong.

    A receiver whose connection breaks may come back before the time limit and starts from token 0.
    """

    transport: Literal["socket", "nixl"]

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
            block=kv.block,
            dtype=str(dtype).removeprefix("torch."),
            bytes_per_token=kv.bytes_per_token,
            transport=self.transport,
        )
        self._kv = kv
        self._timeout = timeout
        self._on_settled = on_settled
        self._ledger = Ledger(timeout)
        self._pulse = Pulse()
        self._pulls: dict[str, _Pull] = {}
        self._past: OrderedDict[str, Settled] = OrderedDict()
        self._live: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._copier = ThreadPoolExecutor(1, thread_name_prefix=f"kv-copy-{rank}")
        self._listener.start(self._serve)
        self._listener.spawn(self._expire())

    def offer(self, request_id: str, block_table: torch.Tensor, prompt_tokens: int, ready: int) -> None:
        """See ``KVSource``.

        Raises:
            HandoffError: the request is offered already, the positions are impossible, or the source is
                closed.
        """
        if not 0 <= ready <= prompt_tokens or len(block_table) * self._kv.block < prompt_tokens:
            raise HandoffError(
                f"request {request_id} offers {ready} of {prompt_tokens} tokens in {len(block_table)} blocks "
                f"of {self._kv.block}, which cannot be"
            )
        with self._changed:
            if self._closed:
                raise HandoffError(f"request {request_id} cannot be offered: the source is closed")
            if request_id in self._live:
                raise HandoffError(f"request {request_id} is already offered; a request id must be unique")
            self._live[request_id] = prompt_tokens
            self._listener.call(self._offer, request_id, block_table.clone(), prompt_tokens, ready)

    def advance(self, request_id: str, ready: int) -> None:
        """See ``KVSource``; ignored for a request that has settled.

        Raises:
            HandoffError: ``ready`` is beyond the prompt.
        """
        with self._changed:
            prompt_tokens = self._live.get(request_id)
        if prompt_tokens is not None and ready > prompt_tokens:
            raise HandoffError(f"request {request_id} has {prompt_tokens} tokens but advances to {ready}")
        self._listener.call(self._advance, request_id, ready)

    def withdraw(self, request_id: str) -> None:
        """See ``KVSource``; ignored for a request that has settled."""
        self._listener.call(self._end, request_id, "withdrawn")

    def pending(self) -> int:
        with self._changed:
            return len(self._live)

    def check(self) -> None:
        """Raise ``AuditError`` if the books are wrong."""
        self._ledger.check()

    def close(self) -> None:
        """Settle everything and stop, within ``CLOSE_SECONDS``; idempotent."""
        latest = time.monotonic() + CLOSE_SECONDS
        with self._changed:
            self._closed = True
        self._listener.call(self._end_all)
        with self._changed:
            settled = self._changed.wait_for(lambda: not self._live, CLOSE_SECONDS - 2.0)
        if not settled:
            logger.error("rank %d: reads of %d requests did not end", self.address.rank, self.pending())
            self._listener.call(self._settle_all)
        self._listener.close(max(1.0, latest - time.monotonic()))
        self._copier.shutdown(wait=False)

    async def _feed(self, channel: Channel, pull: _Pull) -> None:
        """Get all tokens across as they become ready; return early if the request is ending."""
        raise NotImplementedError

    async def _more(self, held: Held) -> bool:
        """Wait for tokens to send; False if all are sent or the request is ending.

        Bounded by the ledger: without progress the request expires, which is an ending.
        """
        await self._pulse.wait_for(
            lambda: held.ending or held.ready > held.sent or held.sent == held.prompt_tokens
        )
        return held.ending is None and held.sent < held.prompt_tokens

    def _end_read(self, held: Held) -> None:
        self._report(self._ledger.end_read(held))

    def _offer(self, request_id: str, table: torch.Tensor, prompt_tokens: int, ready: int) -> None:
        self._ledger.offer(request_id, table, prompt_tokens, ready, time.monotonic())
        self._past.pop(request_id, None)
        self._pulse.fire()

    def _advance(self, request_id: str, ready: int) -> None:
        self._ledger.advance(request_id, ready, time.monotonic())
        self._pulse.fire()

    def _end(self, request_id: str, outcome: Settled) -> None:
        self._report(self._ledger.end(request_id, outcome))
        self._pulse.fire()

    def _end_all(self) -> None:
        for held in self._ledger:
            self._end(held.request_id, "withdrawn")

    def _settle_all(self) -> None:
        for held in self._ledger:
            while held.readers:
                self._end_read(held)

    def _report(self, settled: Held | None) -> None:
        if settled is None or settled.ending is None:
            return
        self._past[settled.request_id] = settled.ending
        if len(self._past) > REMEMBERED:
            self._past.popitem(last=False)
        with self._changed:
            del self._live[settled.request_id]
        try:
            self._on_settled(settled.request_id, settled.ending)
        except Exception:
            logger.exception("settling request %s failed in its owner", settled.request_id)
        with self._changed:
            self._changed.notify_all()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(max(0.02, min(1.0, self._timeout / 10)))
            for request_id in self._ledger.overdue(time.monotonic()):
                logger.warning(
                    "the KV of request %s expired: nothing moved for %.1f s", request_id, self._timeout
                )
                self._end(request_id, "expired")

    async def _serve(self, channel: Channel) -> None:
        try:
            async with deadline.timeout(HELLO_SECONDS):
                hello = await channel.receive(Codec.from_puller)
        except (PeerLost, asyncio.TimeoutError):
            return
        if not isinstance(hello, Pull):
            raise HandoffError(f"{channel.peer} began with {type(hello).__name__} instead of Pull")
        listening = asyncio.create_task(self._listen(channel, hello.request_id))
        tasks: list[asyncio.Task[Any]] = [listening]
        pull: _Pull | None = None
        try:
            me = asyncio.current_task()
            assert me is not None
            attaching = asyncio.create_task(self._attach(hello, me))
            tasks.append(attaching)
            await asyncio.wait({listening, attaching}, return_when=asyncio.FIRST_COMPLETED)
            if not attaching.done():
                return
            pull = attaching.result()
            if pull is None:
                await channel.send(PullFailed(request_id=hello.request_id, message=self._absence(hello)))
                await asyncio.wait({listening}, timeout=STOP_SECONDS)
                return
            held = pull.held
            feeding = asyncio.create_task(self._feed_and_end(channel, pull))
            ending = asyncio.create_task(self._pulse.wait_for(lambda: held.ending))
            tasks += [feeding, ending]
            await asyncio.wait({listening, feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({listening}, timeout=STOP_SECONDS)
            if listening.done():
                feeding.cancel()
                await asyncio.wait({feeding})
                await self._conclude(channel, pull, listening.result())
        except PeerLost as error:
            logger.info("request %s: %s", hello.request_id, error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if pull is not None:
                self._detach(pull)

    async def _attach(self, hello: Pull, task: asyncio.Task[None]) -> _Pull | None:
        """Wait until the request is offered and take over from an earlier connection; None if it is not."""
        wait = max(0.0, hello.wait)
        if hello.request_id in self._past:
            wait = min(wait, REOFFER_SECONDS)
        if not await self._pulse.wait_for(lambda: self._ledger.get(hello.request_id), wait):
            return None
        before = self._pulls.get(hello.request_id)
        if before is not None:
            before.task.cancel()
            await asyncio.wait({before.task}, timeout=STOP_SECONDS)
        held = self._ledger.get(hello.request_id)
        if held is None:
            return None
        self._ledger.start_pull(held)
        pull = _Pull(held, task)
        self._pulls[hello.request_id] = pull
        return pull

    def _detach(self, pull: _Pull) -> None:
        if pull.reading:
            # The connection is gone and with it the reader, or it did not stop in time: either way it gets no
            # ``Released``, so what it read later will not be used.
            pull.reading = False
            self._end_read(pull.held)
        if self._pulls.get(pull.held.request_id) is pull:
            del self._pulls[pull.held.request_id]
            self._ledger.stop_pull(pull.held)

    async def _listen(self, channel: Channel, request_id: str) -> Received | CancelPull | None:
        """What the receiver says at the end; None if its connection ends first."""
        while True:
            try:
                message = await channel.receive(Codec.from_puller)
            except PeerLost:
                return None
            check_request(message, request_id)
            if isinstance(message, Read):
                self._read(message)
            elif isinstance(message, Pull):
                raise HandoffError(f"{channel.peer} pulls request {request_id} twice over one connection")
            else:
                return message

    def _read(self, message: Read) -> None:
        pull = self._pulls.get(message.request_id)
        if pull is None or not pull.reading or not pull.held.sent < message.end <= pull.held.ready:
            raise HandoffError(
                f"the receiver of request {message.request_id} says it read up to token {message.end}, which "
                "it was not told to"
            )
        pull.reading = False
        self._ledger.delivered(pull.held, message.end, time.monotonic())
        self._end_read(pull.held)
        self._pulse.fire()

    async def _feed_and_end(self, channel: Channel, pull: _Pull) -> None:
        """Feed, then wait for the request to end, and tell the receiver if it ended badly."""
        held = pull.held
        try:
            await self._feed(channel, pull)
            if held.ending is None:
                size = self._kv.bytes_per_token * held.prompt_tokens
                await channel.send(End(request_id=held.request_id, tokens=held.prompt_tokens, size=size))
                await self._pulse.wait_for(lambda: held.ending)
        except PeerLost:
            raise
        except Exception as error:
            logger.exception("rank %d cannot hand off request %s", self.address.rank, held.request_id)
            self._end(held.request_id, "failed")
            await channel.send(
                PullFailed(request_id=held.request_id, message=self._trouble(held, str(error)))
            )
            return
        await channel.send(PullFailed(request_id=held.request_id, message=self._trouble(held)))

    async def _conclude(self, channel: Channel, pull: _Pull, last: Received | CancelPull | None) -> None:
        held = pull.held
        if isinstance(last, CancelPull):
            self._end(held.request_id, "withdrawn")
        elif isinstance(last, Received):
            expected = (held.prompt_tokens, self._kv.bytes_per_token * held.prompt_tokens)
            if held.ending is not None:
                answer = self._trouble(held)
            elif (last.tokens, last.size) != expected or held.sent != held.prompt_tokens:
                self._end(held.request_id, "failed")
                answer = self._trouble(
                    held, f"it confirms {last.tokens} tokens in {last.size} bytes instead of {expected}"
                )
            else:
                self._end(held.request_id, "received")
                await channel.send(Released(request_id=held.request_id))
                return
            await channel.send(PullFailed(request_id=held.request_id, message=answer))

    def _trouble(self, held: Held, reason: str = "") -> str:
        if not reason:
            reason = (
                f"nothing moved for {self._timeout:.1f} s" if held.ending == "expired" else "it was given up"
            )
        return (
            f"rank {self.address.rank} no longer holds the KV of request {held.request_id} "
            f"({held.ending}): {reason}"
        )

    def _absence(self, hello: Pull) -> str:
        past = self._past.get(hello.request_id)
        what = f"was {past} already" if past else f"was not offered within {hello.wait:.1f} s"
        return f"rank {self.address.rank} has no KV of request {hello.request_id}: it {what}"


class SocketSource(RankSource):
    """KV travels over the pull connection itself, as bytes behind ``Piece`` messages."""

    transport = "socket"

    async def _feed(self, channel: Channel, pull: _Pull) -> None:
        held = pull.held
        step = max(1, PIECE_BYTES // self._kv.bytes_per_token)
        while await self._more(held):
            start = held.sent
            end = min(held.ready, start + step)
            payload = (await self._copy(held, start, end)).numpy().data
            if held.ending is not None:
                return
            await channel.send(Piece(request_id=held.request_id, start=start, end=end, size=len(payload)))
            for offset in range(0, len(payload), SEND_BYTES):
                await channel.send_raw(payload[offset : offset + SEND_BYTES])
                self._ledger.moved(held, time.monotonic())
            self._ledger.delivered(held, end, time.monotonic())

    async def _copy(self, held: Held, start: int, end: int) -> torch.Tensor:
        """Export in the copy thread. The read ends when the copy does, whatever becomes of this task."""
        self._ledger.begin_read(held)
        copying = asyncio.get_running_loop().run_in_executor(
            self._copier, self._kv.export_tokens, held.table, start, end
        )
        copying.add_done_callback(lambda _: self._end_read(held))
        return await asyncio.shield(copying)
