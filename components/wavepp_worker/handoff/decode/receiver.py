"""The decode side of a hand-off: claims a room and gathers all ranks' layers into its own KV."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import torch

from wavepp_worker.errors import HandoffError, HandoffMismatch, RequestTimeout
from wavepp_worker.handoff.claim_messages import (
    TO_CLAIMANT,
    CancelClaim,
    ClaimFailed,
    ClaimRoom,
    Offered,
    Prefilled,
    check_room,
)
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.connection.tasks import results, stop_all
from wavepp_worker.handoff.decode.introductions import Introductions
from wavepp_worker.handoff.decode.puller import (
    CANCEL_SECONDS,
    RETRY_SECONDS,
    Puller,
    PullRefused,
    StateBlock,
)
from wavepp_worker.handoff.decode.received import Moments, Received
from wavepp_worker.handoff.nixl.library import nixl_installed
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.model.stage import PagedKV

CLAIM_ATTEMPTS = 3
"""Connections tried for one claim until there is a first answer."""
REASON_SECONDS = 1.0
"""How long a rank's refusal waits for the prefill worker's own sentence, which says more."""


class KVReceiver:
    """Receives KV into one decode worker's memory, any number of requests at a time.

    Args:
        kv: the decode worker's memory of all layers.
        num_layers: layers of the model; what the ranks offer must cover each exactly once.
        dtype: of ``kv``; the ranks' must be the same.
        model_id: the prefill worker's must be the same.
        host: local address that connections come from.
    """

    def __init__(self, kv: PagedKV, num_layers: int, dtype: torch.dtype, model_id: str, host: str) -> None:
        self._kv = kv
        self._num_layers = num_layers
        self._dtype = str(dtype).removeprefix("torch.")
        self._model_id = model_id
        self._introductions = Introductions(host)
        self._puller = Puller(kv, host)

    async def receive(
        self,
        at: BootstrapAddress,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
        state: StateBlock | None = None,
        on_computed: Callable[[], object] = lambda: None,
    ) -> Received:
        """Claim a room, pull its KV from all ranks while the prompt may still be computing, and confirm.

        If this fails or is cancelled, the prefill worker is told, so that it frees the KV at once. Nothing is
        written to the request's blocks any more when it returns or raises.

        Args:
            at: the room, and its secret.
            allocate: int64 ``[>= ceil(prompt_tokens / kv.block_size)]`` block table for an offer; may wait for
                blocks. What it raises is passed on.
            timeout: seconds for all of it.
            state: this worker's block for the state of recurrent layers, asked for once ``allocate`` has answered.
            on_computed: told when the prompt is computed, so that all KV can be pulled at once.

        Raises:
            HandoffError: the prefill failed, the offer does not fit this worker, or a rank was lost; the
                message says which.
            RequestTimeout: it took longer than ``timeout``.
        """
        try:
            async with deadline.timeout(timeout):
                return await self._claim_and_pull(at, allocate, timeout, state, on_computed)
        except asyncio.TimeoutError as error:
            raise RequestTimeout(
                f"the KV of room {at.room} at {at.host}:{at.port} was not here within {timeout:.1f} s; the prefill "
                "takes longer, or no blocks for it came free. Raise handoff_timeout or lower the load"
            ) from error

    def close(self) -> None:
        """Let go of threads and registered memory; no ``receive`` may be running. Idempotent."""
        self._puller.close()

    async def _claim_and_pull(
        self,
        at: BootstrapAddress,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
        state: StateBlock | None,
        on_computed: Callable[[], object],
    ) -> Received:
        began, room = time.monotonic(), at.room
        latest = began + timeout
        channel, offered = await self._claim(at, timeout)
        async with _given_up_on_error(channel, room):
            if not isinstance(offered, Offered):
                raise HandoffError(f"room {room} was answered with {type(offered).__name__} before any offer")
            offer = offered.offer
            self._check(offer)
            offered_at = time.monotonic()
            prefill = asyncio.create_task(self._first_token(channel, room, on_computed))
            gathering = asyncio.create_task(self._gather(offer, allocate, latest, state))
            try:
                await asyncio.wait({prefill, gathering}, return_when=asyncio.FIRST_EXCEPTION)
                if gathering.done() and isinstance(gathering.exception(), PullRefused):
                    # A failed prefill takes its KV back, and only the bootstrap server knows why it failed.
                    await asyncio.wait({prefill}, timeout=REASON_SECONDS)
            finally:
                await stop_all(prefill, gathering)
            (first, prefilled), size = results(prefill, gathering)
            channel.close()
            moments = Moments(began=began, offered=offered_at, prefilled=prefilled, ended=time.monotonic())
            return Received(offer=offer, first=first, bytes_received=size, moments=moments)

    async def _claim(self, at: BootstrapAddress, timeout: float) -> tuple[Channel, Offered | Prefilled]:
        """A connection on which the room is claimed, and the first answer.

        One that is lost before is not yet a lost peer: on a starved machine nobody may run for as long as a connection
        may take, and among many strangers the prefill worker may close one before it has read what it wants.
        """
        claim = ClaimRoom(room=at.room, secret=at.secret, wait=timeout)
        for attempt in range(1, CLAIM_ATTEMPTS + 1):
            try:
                channel = await self._introductions.connect(at.host, at.port, claim)
                async with _given_up_on_error(channel, at.room):
                    return channel, await self._claimed(channel, at.room)
            except PeerLost:
                if attempt == CLAIM_ATTEMPTS:
                    raise
            await asyncio.sleep(RETRY_SECONDS * attempt)
        raise AssertionError("unreachable")

    async def _claimed(self, channel: Channel, room: int) -> Offered | Prefilled:
        message = await channel.receive(TO_CLAIMANT)
        check_room(message, room)
        if isinstance(message, ClaimFailed):
            raise _Refused(message.message)
        return message

    async def _first_token(
        self, channel: Channel, room: int, on_computed: Callable[[], object]
    ) -> tuple[FirstToken, float]:
        """The first token, and when it came."""
        message = await self._claimed(channel, room)
        if not isinstance(message, Prefilled):
            raise HandoffError(f"room {room} was offered twice")
        on_computed()
        return message.first, time.monotonic()

    def _check(self, offer: Offer) -> None:
        """Raise ``HandoffMismatch`` unless the offer is of this worker's model, dtype and layers."""
        name = f"request {offer.request_id}"
        if offer.model_id != self._model_id:
            raise HandoffMismatch(
                f"{name}: the prefill worker serves model {offer.model_id}, this decode worker "
                f"{self._model_id}; start both with the same model"
            )
        for rank in offer.ranks:
            if rank.dtype != self._dtype:
                raise HandoffMismatch(
                    f"{name}: rank {rank.rank} offers KV in {rank.dtype}, this decode worker holds "
                    f"{self._dtype}; set the same dtype and kv_dtype on both"
                )
            if rank.transport == "nixl" and not nixl_installed():
                raise HandoffMismatch(
                    f"{name}: rank {rank.rank} offers KV over NIXL, which is not installed here; install it "
                    "on the decode side with pip install --no-deps nixl nixl-cu12, or set handoff to "
                    "socket on the prefill side"
                )
        next_layer = 0
        for first, end in sorted(rank.layers for rank in offer.ranks):
            if first != next_layer or end <= first:
                break
            next_layer = end
        if next_layer != self._num_layers:
            spans = ", ".join(f"{rank.layers[0]} to {rank.layers[1] - 1}" for rank in offer.ranks)
            raise HandoffMismatch(
                f"{name}: the ranks offer layers {spans}; layers 0 to {self._num_layers - 1} are needed, "
                "each exactly once"
            )
        width = sum(rank.bytes_per_token for rank in offer.ranks)
        if width != self._kv.bytes_per_token:
            raise HandoffMismatch(
                f"{name}: the ranks offer {width} bytes per token, this decode worker's KV takes "
                f"{self._kv.bytes_per_token}; both sides must have the same model and dtype"
            )
        offered = sum(rank.state_bytes for rank in offer.ranks)
        taken = self._kv.states.block_bytes if self._kv.states is not None else 0
        if offered != taken:
            raise HandoffMismatch(
                f"{name}: the ranks offer states of {offered} bytes, this decode worker's take {taken}; both sides "
                "must have the same model and dtype"
            )

    async def _gather(
        self,
        offer: Offer,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        latest: float,
        state: StateBlock | None,
    ) -> int:
        """Pull from all ranks at once, as soon as there are blocks; returns the KV bytes that came."""
        table = asyncio.ensure_future(self._blocks(offer, allocate))
        pulls = [
            asyncio.create_task(self._puller.pull(offer, rank, table, latest, state)) for rank in offer.ranks
        ]
        try:
            await asyncio.wait({table, *pulls}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await stop_all(table, *pulls)
        _, *sizes = results(table, *pulls)
        return sum(sizes)

    async def _blocks(
        self, offer: Offer, allocate: Callable[[Offer], Awaitable[torch.Tensor]]
    ) -> torch.Tensor:
        table = await allocate(offer)
        if len(table) * self._kv.block_size < offer.prompt_tokens:
            raise HandoffError(
                f"request {offer.request_id} got {len(table)} blocks of {self._kv.block_size} tokens for a prompt "
                f"of {offer.prompt_tokens}"
            )
        return table


@asynccontextmanager
async def _given_up_on_error(channel: Channel, room: int) -> AsyncIterator[None]:
    """Closes the connection if what is within fails, and says first that the room is not wanted any more."""
    try:
        yield
    except _Refused as error:
        channel.close()
        raise HandoffError(str(error)) from None
    except BaseException:
        try:
            await channel.say_last(CancelClaim(room=room), CANCEL_SECONDS)
        finally:
            channel.close()
        raise


class _Refused(HandoffError):
    """The bootstrap server's last word; there is nothing left to cancel."""
