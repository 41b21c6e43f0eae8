"""The rank's side of pull connections: one receiver at a time gets a request's KV, and confirms it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.channel import ASK_LIMIT_BYTES, Channel, PeerLost
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.prefill.holdings import Holdings
from wavepp_worker.handoff.pull_messages import (
    FROM_PULLER,
    AllSent,
    CancelPull,
    Pull,
    PullFailed,
    PullReceived,
    PullValid,
    RegionsRead,
    SendKv,
    StillPulling,
    check_request,
)
from wavepp_worker.handoff.secret import REFUSAL
from wavepp_worker.log_form import of_request

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""What a receiver has to stop reading, once told that there is no more to pull."""
REFUSE_SECONDS = 1.0
"""What telling a peer that it is refused may take."""


@dataclass
class ReceiverState:
    """``ready``: the receiver has blocks for what it asks for; before that nothing is sent."""

    ready: bool


@dataclass
class ServedPull:
    """A connected receiver. ``reading``: it was told where tokens are and has not said ``RegionsRead``."""

    held: HeldKv
    task: asyncio.Task[None]
    receiver: ReceiverState
    reading: bool = False


Feed = Callable[[Channel, ServedPull], Awaitable[None]]
"""Gets all tokens across as they become ready, then the state; returns early if the request is ending."""


class PullServer:
    """Serves whoever pulls what one rank holds; a newer connection takes over from an older one.

    Args:
        address: of the rank.
        holdings: of the event loop that connections are served in.
        feed: how tokens get across.
    """

    def __init__(self, address: RankAddress, holdings: Holdings, feed: Feed) -> None:
        self._rank = address.rank
        self._address = address
        self._holdings = holdings
        self._feed = feed
        self._pulls: dict[str, ServedPull] = {}

    def reading(self) -> bool:
        """Whether some receiver reads where it was told to."""
        return any(pull.reading for pull in self._pulls.values())

    async def serve(self, channel: Channel) -> None:
        """Serve one connection until its receiver is done or gone, or its request has ended.

        Raises:
            HandoffError: the peer says what does not belong on a pull connection.
        """
        hello = await channel.receive_hello(FROM_PULLER, Pull)
        if hello is None:
            return
        if not self._holdings.allows(hello.request_id, hello.secret):
            refusal = PullFailed(request_id=hello.request_id, message=REFUSAL)
            await channel.say_last(refusal, REFUSE_SECONDS)
            raise HandoffError(f"{channel.peer} pulled with a name and secret that do not belong together")
        channel.welcome()
        receiver = ReceiverState(hello.ready)
        listening = asyncio.create_task(self._listen(channel, hello.request_id, receiver))
        tasks: list[asyncio.Task[Any]] = [listening]
        pull: ServedPull | None = None
        try:
            me = asyncio.current_task()
            assert me is not None
            attaching = asyncio.create_task(self._attach(hello, receiver, me))
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
            ending = asyncio.create_task(self._holdings.changed.wait_for(lambda: held.ending))
            tasks += [feeding, ending]
            await asyncio.wait({listening, feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({listening}, timeout=STOP_SECONDS)
            if listening.done():
                feeding.cancel()
                await asyncio.wait({feeding})
                await self._conclude(channel, pull, listening.result())
        except PeerLost as error:
            logger.info("request %s: %s", hello.request_id, error, extra=of_request(hello.request_id))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if pull is not None:
                self._detach(pull)

    async def _attach(
        self, hello: Pull, receiver: ReceiverState, task: asyncio.Task[None]
    ) -> ServedPull | None:
        """Wait until the request is offered and take over from an earlier connection; None if it is not."""
        name, holdings = hello.request_id, self._holdings
        latest = time.monotonic() + deadline.bounded(hello.wait)
        await holdings.changed.wait_for(
            lambda: holdings.get(name) or not holdings.expected(name), latest - time.monotonic()
        )
        if holdings.get(name) is None or not holdings.allows(name, hello.secret):
            return None
        before = self._pulls.get(hello.request_id)
        if before is not None:
            before.task.cancel()
            await asyncio.wait({before.task}, timeout=STOP_SECONDS)
        held = self._holdings.get(hello.request_id)
        if held is None:
            return None
        held.start_pull(time.monotonic(), latest - time.monotonic())
        pull = ServedPull(held, task, receiver)
        self._pulls[hello.request_id] = pull
        return pull

    def _detach(self, pull: ServedPull) -> None:
        if pull.reading:
            # The connection is gone and with it the reader, or it did not stop in time: either way it gets no
            # ``PullValid``, so what it read later will not be used.
            pull.reading = False
            self._holdings.end_read(pull.held)
        if self._pulls.get(pull.held.request_id) is pull:
            del self._pulls[pull.held.request_id]
            pull.held.stop_pull(time.monotonic())

    async def _listen(
        self, channel: Channel, request_id: str, receiver: ReceiverState
    ) -> PullReceived | CancelPull | None:
        """What the receiver says at the end; None if its connection ends first."""
        while True:
            try:
                message = await channel.receive(FROM_PULLER, ASK_LIMIT_BYTES)
            except PeerLost:
                return None
            check_request(message, request_id)
            pull = self._pulls.get(request_id)
            if pull is not None:
                pull.held.asked(time.monotonic())
            if isinstance(message, StillPulling):
                continue
            if isinstance(message, SendKv):
                receiver.ready = True
                self._holdings.changed.fire()
            elif isinstance(message, RegionsRead):
                self._read(message)
            elif isinstance(message, Pull):
                raise HandoffError(f"{channel.peer} pulls request {request_id} twice over one connection")
            else:
                return message

    def _read(self, message: RegionsRead) -> None:
        pull = self._pulls.get(message.request_id)
        if pull is None or not pull.reading or not pull.held.sent < message.end <= pull.held.ready:
            raise HandoffError(
                f"the receiver of request {message.request_id} says it read up to token {message.end}, which "
                "it was not told to"
            )
        pull.reading = False
        pull.held.delivered(message.end, time.monotonic())
        self._holdings.end_read(pull.held)
        self._holdings.changed.fire()

    async def _feed_and_end(self, channel: Channel, pull: ServedPull) -> None:
        """Feed, then wait for the request to end, and tell the receiver if it ended badly."""
        held = pull.held
        try:
            await self._holdings.changed.wait_for(lambda: held.ending or pull.receiver.ready)
            await self._feed(channel, pull)
            if held.ending is None:
                size = self._address.size(held.prompt_tokens)
                await channel.send(AllSent(request_id=held.request_id, tokens=held.prompt_tokens, size=size))
                await self._holdings.changed.wait_for(lambda: held.ending)
        except PeerLost:
            raise
        except Exception as error:
            logger.exception(
                "rank %d cannot hand off request %s",
                self._rank,
                held.request_id,
                extra=of_request(held.request_id),
            )
            self._end(held, "failed")
            await channel.send(
                PullFailed(request_id=held.request_id, message=self._trouble(held, str(error)))
            )
            return
        await channel.send(PullFailed(request_id=held.request_id, message=self._trouble(held)))

    async def _conclude(
        self, channel: Channel, pull: ServedPull, last: PullReceived | CancelPull | None
    ) -> None:
        held = pull.held
        if isinstance(last, CancelPull):
            self._end(held, "withdrawn")
        elif isinstance(last, PullReceived):
            expected = (held.prompt_tokens, self._address.size(held.prompt_tokens))
            if held.ending is not None:
                answer = self._trouble(held)
            elif (last.tokens, last.size) != expected or held.sent != held.prompt_tokens:
                self._holdings.end(held.request_id, "failed")
                answer = self._trouble(
                    held, f"it confirms {last.tokens} tokens in {last.size} bytes instead of {expected}"
                )
            else:
                self._holdings.end(held.request_id, "received")
                await channel.send(PullValid(request_id=held.request_id))
                return
            await channel.send(PullFailed(request_id=held.request_id, message=answer))

    def _end(self, held: HeldKv, outcome: Settled) -> None:
        # Once it has settled, its id may be that of another request, which this connection must not end.
        if held.ending is None:
            self._holdings.end(held.request_id, outcome)

    def _trouble(self, held: HeldKv, reason: str = "") -> str:
        if not reason:
            reason = (
                f"nobody asked for it for {self._holdings.timeout:.1f} s, or for longer than its receiver waits"
                if held.ending == "expired"
                else "it was given up"
            )
        return (
            f"rank {self._rank} no longer holds the KV of request {held.request_id} ({held.ending}): {reason}"
        )

    def _absence(self, hello: Pull) -> str:
        past = self._holdings.past(hello.request_id)
        what = f"was not offered within {hello.wait:.1f} s"
        if not self._holdings.expected(hello.request_id):
            what = f"was {past or 'withdrawn'} already"
        return f"rank {self._rank} has no KV of request {hello.request_id}: it {what}"
