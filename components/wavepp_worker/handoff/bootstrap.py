"""The prefill worker's bootstrap server: decode workers claim rooms and learn where the KV is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.channel import Channel, PeerLost
from wavepp_worker.handoff.interface import FirstToken, Offer
from wavepp_worker.handoff.listener import Listener
from wavepp_worker.handoff.wire import (
    CancelClaim,
    Claim,
    ClaimFailed,
    Codec,
    Offered,
    Prefilled,
    check_room,
)

CLAIM_WAIT_SECONDS = 30.0
"""How long a claim waits for its room to be registered."""
ROOM_SECONDS = 120.0
"""How long the end of a room that nobody has claimed is remembered."""
CLOSE_SECONDS = 5.0


@dataclass
class _Room:
    """One request's meeting point. ``changed`` is set whenever something below changes."""

    offer: Offer | None = None
    first: FirstToken | None = None
    failure: str | None = None
    claimed: bool = False
    touched: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def over(self) -> bool:
        return self.first is not None or self.failure is not None


class BootstrapServer:
    """Serves claims from a thread of its own. ``register``, ``finish`` and ``fail`` are thread-safe.

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        on_cancel: told the request id when the decode side gives a claimed room up before its first token.

    Raises:
        HandoffError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int = 0, *, on_cancel: Callable[[str], None]) -> None:
        self._listener = Listener(host, port, "bootstrap server")
        self._on_cancel = on_cancel
        self._rooms: dict[int, _Room] = {}
        self._listener.start(self._serve)
        self._listener.spawn(self._sweep())

    @property
    def host(self) -> str:
        return self._listener.host

    @property
    def port(self) -> int:
        return self._listener.port

    def register(self, room: int, offer: Offer) -> None:
        """Offer a request's KV in ``room``."""
        self._update(room, offer=offer)

    def finish(self, room: int, first: FirstToken) -> None:
        """The prompt is done."""
        self._update(room, first=first)

    def fail(self, room: int, message: str) -> None:
        """There will be no first token, because of ``message``."""
        self._update(room, failure=message)

    def pending(self) -> int:
        """Rooms whose end no decode worker has been told."""
        return len(self._rooms)

    def close(self) -> None:
        """Stop serving, within a bounded time; idempotent."""
        self._listener.close(CLOSE_SECONDS)

    def _update(self, number: int, **changes: object) -> None:
        def apply() -> None:
            room = self._rooms.setdefault(number, _Room())
            if not room.over:
                for name, value in changes.items():
                    setattr(room, name, value)
                room.touched = time.monotonic()
                room.changed.set()

        self._listener.call(apply)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for number, room in list(self._rooms.items()):
                if room.over and not room.claimed and now - room.touched > ROOM_SECONDS:
                    del self._rooms[number]

    async def _serve(self, channel: Channel) -> None:
        claim = await asyncio.wait_for(channel.receive(Codec.from_claimant), CLAIM_WAIT_SECONDS)
        if not isinstance(claim, Claim):
            raise HandoffError(f"{channel.peer} began with a {type(claim).__name__} instead of a claim")
        room = self._rooms.setdefault(claim.room, _Room())
        if room.claimed:
            await channel.send(ClaimFailed(room=claim.room, message=f"room {claim.room} is claimed already"))
            await channel.finish(CLOSE_SECONDS)
            return
        room.claimed = True
        leaving = asyncio.ensure_future(self._left(channel, claim.room))
        try:
            told = await self._tell(channel, claim, room, leaving)
        except PeerLost:
            told = False
        finally:
            leaving.cancel()
            self._rooms.pop(claim.room, None)
        if not told and room.offer is not None and not room.over:
            self._on_cancel(room.offer.request_id)
        if told:
            await channel.finish(CLOSE_SECONDS)

    async def _tell(
        self, channel: Channel, claim: Claim, room: _Room, leaving: asyncio.Future[None]
    ) -> bool:
        """Offer, then the end; False if the decode side left first."""
        if not await self._until(room, lambda: room.offer is not None or room.over, leaving, CLAIM_WAIT_SECONDS):
            if leaving.done():
                return False
            message = f"no prefill for room {claim.room} arrived within {CLAIM_WAIT_SECONDS:.0f} s"
            await channel.send(ClaimFailed(room=claim.room, message=message))
            return True
        if room.offer is not None:
            await channel.send(Offered(room=claim.room, offer=room.offer))
        if not await self._until(room, lambda: room.over, leaving, claim.wait):
            return False
        if room.failure is not None:
            await channel.send(ClaimFailed(room=claim.room, message=room.failure))
        elif room.first is not None:
            await channel.send(Prefilled(room=claim.room, first=room.first))
        return True

    async def _until(
        self, room: _Room, holds: Callable[[], bool], leaving: asyncio.Future[None], timeout: float
    ) -> bool:
        deadline = time.monotonic() + timeout
        while not holds():
            room.changed.clear()
            changed = asyncio.ensure_future(room.changed.wait())
            await asyncio.wait(
                {changed, leaving},
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            changed.cancel()
            if not holds() and (leaving.done() or time.monotonic() >= deadline):
                return False
        return True

    async def _left(self, channel: Channel, room: int) -> None:
        """Returns when the decode side cancels or its connection ends."""
        try:
            message = await channel.receive(Codec.from_claimant)
            check_room(message, room)
        except HandoffError:
            return
