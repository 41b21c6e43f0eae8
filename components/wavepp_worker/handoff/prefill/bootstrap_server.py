"""The prefill worker's meeting point: decode workers claim rooms here and learn what to pull from where."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.claim_messages import (
    FROM_CLAIMANT,
    ClaimFailed,
    ClaimRoom,
    Offered,
    Prefilled,
    check_room,
)
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.change_signal import ChangeSignal
from wavepp_worker.handoff.connection.channel import ASK_LIMIT_BYTES, Channel, PeerLost
from wavepp_worker.handoff.connection.listener import Listener
from wavepp_worker.handoff.offer import FirstToken, Offer
from wavepp_worker.handoff.prefill.bootstrap_rooms import BootstrapRoom, BootstrapRooms
from wavepp_worker.handoff.secret import REFUSAL, Secret
from wavepp_worker.log_form import of_request

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
REFUSE_SECONDS = 1.0
"""What telling a peer that it is refused may take."""
UNKNOWN_ROOM_SECONDS = 30.0
"""How long a claim waits for its room to be registered."""


class BootstrapServer:
    """Matches claims of decode workers with the prefills of this worker, whichever comes first. Thread-safe.

    A room is registered when its prefill is accepted, opened when its KV can be pulled, and must then be
    finished or failed. It is over once the decode side has been told the outcome, has cancelled, has not claimed
    it for ``keep`` seconds after the outcome, or will not, as whoever was to claim it has left. A room is claimed
    once; it never comes back.

    Attributes:
        key: what the secrets of all rooms follow from. Whoever chooses rooms and sends decode workers here must
            know it, and pass on the room's secret or the key.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        on_cancel: Callable[[Offer], None],
        keep: float = 60.0,
    ) -> None:
        """Listen at once.

        Args:
            port: 0 takes a free one.
            on_cancel: told the offer of a room, from the server's thread and once at most, when nobody waits for
                its first token any more, nobody came for it, or its claimant gave the KV up after the first
                token. It must not block.
            keep: seconds an outcome waits for its claim.

        Raises:
            HandoffError: the address is in use or not of this machine.
        """
        try:
            self._listener = Listener(host, port, "bootstrap")
        except OSError as error:
            raise HandoffError(
                f"the bootstrap server cannot listen on {host}:{port}: {error}; choose a free port (0 takes "
                "any) and an address of this machine"
            ) from error
        self.host = host
        self.key = Secret.fresh()
        self.port = self._listener.port
        self._on_cancel = on_cancel
        self._keep = keep
        self._lock = threading.Lock()
        self._changed = ChangeSignal()
        self._rooms = BootstrapRooms(keep)
        self._listener.start(self._serve)
        self._listener.spawn(self._forget())

    def secret(self, room: int) -> Secret:
        """What a claim of ``room`` must know."""
        return self.key.for_room(room)

    def register(self, room: int, offer: Offer, *, hold: bool = False) -> None:
        """A prefill was accepted: ``room`` can be claimed, and its KV pulled unless ``hold``, till ``open``.

        Raises:
            HandoffError: the room is registered already, or over.
        """
        with self._lock:
            wanted = self._rooms.register(room, offer, hold=hold, now=time.monotonic())
        if not wanted:
            self._listener.call(self._cancel, offer)
        self._listener.call(self._changed.fire)

    def open(self, room: int) -> None:
        """The prefill has its blocks on every rank: its claimant may start pulling.

        Not before, as a claimant that gets an offer holds decode blocks for it: if the prefill still waited,
        blocks of one side could wait for blocks of the other. Ignored if the room is over.
        """
        with self._lock:
            self._rooms.open(room)
        self._listener.call(self._changed.fire)

    def finish(self, room: int, first: FirstToken) -> None:
        """The prefill is done. Ignored if the room is over."""
        with self._lock:
            self._rooms.finish(room, first, time.monotonic())
        self._listener.call(self._changed.fire)

    def fail(self, room: int, message: str) -> None:
        """There will be no first token; the decode side is told ``message``. Ignored if the room is over.

        The room need not be registered: a claim that comes later is told, too.
        """
        with self._lock:
            self._rooms.fail(room, message, time.monotonic())
        self._listener.call(self._changed.fire)

    def abandon(self, room: int) -> None:
        """No claim will come: its KV is wanted by nobody. Ignored if the room is claimed or over."""
        with self._lock:
            unwanted = self._rooms.abandon(room)
        if unwanted is not None:
            self._listener.call(self._cancel, unwanted)

    def pending(self) -> int:
        """Rooms that are registered or claimed, and not over."""
        with self._lock:
            return len(self._rooms)

    def awaited(self) -> int:
        """Those of which KV is held or still to come."""
        with self._lock:
            return self._rooms.awaited()

    def close(self) -> None:
        """Stop within ``CLOSE_SECONDS``; claims that wait lose their connection. Idempotent."""
        self._listener.close(CLOSE_SECONDS)

    async def _serve(self, channel: Channel) -> None:
        claim = await channel.receive_hello(FROM_CLAIMANT, ClaimRoom)
        if claim is None:
            return
        if not self.secret(claim.room).matches(claim.secret):
            await channel.say_last(ClaimFailed(room=claim.room, message=REFUSAL), REFUSE_SECONDS)
            raise HandoffError(f"{channel.peer} claimed a room with a secret that is not its own")
        channel.welcome()
        room, wait = claim.room, deadline.bounded(claim.wait)
        with self._lock:
            entry = self._rooms.claim(room, time.monotonic())
        if isinstance(entry, str):
            await channel.send(ClaimFailed(room=room, message=entry))
            return
        listening = asyncio.create_task(self._listen(channel, room))
        answering = asyncio.create_task(self._answer(channel, room, wait, entry))
        told = False
        try:
            await asyncio.wait({listening, answering}, return_when=asyncio.FIRST_COMPLETED)
            told = answering.done() and answering.exception() is None and answering.result()
            if told:
                self._leave(room, told=True)
                # It may give up between the first token and the last KV, or have done so before it was told.
                await asyncio.wait({listening}, timeout=wait)
                if listening.done() and listening.exception() is None and listening.result() and entry.offer:
                    self._cancel(entry.offer)
        finally:
            for task in (listening, answering):
                task.cancel()
            await asyncio.gather(listening, answering, return_exceptions=True)
            if not told:
                self._leave(room, told=False)

    async def _listen(self, channel: Channel, room: int) -> bool:
        """Whether the claimant says that it does not want the room any more; False if it is gone."""
        try:
            message = await channel.receive(FROM_CLAIMANT, ASK_LIMIT_BYTES)
        except PeerLost:
            return False
        check_room(message, room)
        return True

    async def _answer(self, channel: Channel, room: int, wait: float, entry: BootstrapRoom) -> bool:
        """Tell the claimant the offer and the outcome within ``wait``; whether it knows the outcome."""
        latest = time.monotonic() + wait
        unknown = min(wait, UNKNOWN_ROOM_SECONDS)
        if not await self._changed.wait_for(lambda: entry.offer or entry.outcome, unknown):
            message = (
                f"no prefill for room {room} reached this worker within {unknown:.1f} s; the request was not "
                "routed here, or is lost"
            )
            await channel.send(ClaimFailed(room=room, message=message))
            return False
        left = max(0.0, latest - time.monotonic())
        in_time = await self._changed.wait_for(lambda: entry.open or entry.outcome, left)
        if in_time and entry.offer is not None and not isinstance(entry.outcome, str):
            await channel.send(Offered(room=room, offer=entry.offer))
            left = max(0.0, latest - time.monotonic())
            in_time = await self._changed.wait_for(lambda: entry.outcome, left)
        if not in_time:
            message = f"the prefill of room {room} took more than the {wait:.1f} s it was claimed for"
            await channel.send(ClaimFailed(room=room, message=message))
            return False
        outcome = entry.outcome
        if isinstance(outcome, FirstToken):
            await channel.send(Prefilled(room=room, first=outcome))
        else:
            await channel.send(ClaimFailed(room=room, message=str(outcome)))
        return True

    def _leave(self, room: int, *, told: bool) -> None:
        with self._lock:
            unwanted = self._rooms.leave(room, told=told, now=time.monotonic())
        if unwanted is not None:
            self._cancel(unwanted)

    def _cancel(self, offer: Offer) -> None:
        try:
            self._on_cancel(offer)
        except Exception:
            logger.exception(
                "cancelling request %s failed in its owner",
                offer.request_id,
                extra=of_request(offer.request_id),
            )

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(max(0.02, min(1.0, self._keep / 4)))
            with self._lock:
                unclaimed = self._rooms.forget(time.monotonic())
            for offer in unclaimed:
                self._cancel(offer)
