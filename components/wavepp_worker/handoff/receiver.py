"""The decode side of a hand-off: claim a room, pull every rank's layers, confirm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import torch

from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff import deadline
from wavepp_worker.handoff.channel import Channel, PeerLost
from wavepp_worker.handoff.interface import FirstToken, Offer, RankAddress
from wavepp_worker.handoff.wire import (
    CancelClaim,
    CancelPull,
    Claim,
    ClaimFailed,
    Codec,
    End,
    Offered,
    Piece,
    Prefilled,
    Pull,
    PullFailed,
    Received as PullReceived,
    Released,
    check_request,
    check_room,
)
from wavepp_worker.model.stage import PagedKV

CONNECT_SECONDS = 10.0
CANCEL_SECONDS = 2.0


class BootstrapAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a decode worker claims one request's KV."""

    host: str
    port: int
    room: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A completed transfer: what was offered, the first token, KV bytes and seconds taken."""

    offer: Offer
    first: FirstToken
    bytes_received: int
    seconds: float


class KVReceiver:
    """Pulls the KV of one request at a time or of many concurrently, into one paged pool."""

    def __init__(self, kv: PagedKV, num_layers: int, dtype: torch.dtype, model_id: str, host: str) -> None:
        self._kv = kv
        self._num_layers = num_layers
        self._dtype = str(dtype).removeprefix("torch.")
        self._model_id = model_id
        self._host = host

    async def receive(
        self,
        host: str,
        port: int,
        room: int,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
    ) -> Received:
        """Receive everything of one request.

        Args:
            host, port, room: where to claim.
            allocate: gives the block table (int64) for ``offer.prompt_tokens`` tokens; may wait for room.
            timeout: seconds for all of it.

        Raises:
            HandoffError: prefill failed, or its KV does not fit this pool or did not arrive whole.
            TimeoutError: it took longer than ``timeout``.
        """
        async with deadline.timeout(timeout):
            return await self._receive(host, port, room, allocate, timeout)

    async def _receive(
        self,
        host: str,
        port: int,
        room: int,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
    ) -> Received:
        begun = time.monotonic()
        channel = await Channel.connect(host, port, self._host, CONNECT_SECONDS)
        try:
            await channel.send(Claim(room=room, wait=timeout))
            offered = await channel.receive(Codec.to_claimant)
            check_room(offered, room)
            if isinstance(offered, ClaimFailed):
                raise HandoffError(offered.message)
            if not isinstance(offered, Offered):
                raise HandoffError(f"room {room} answered {type(offered).__name__} instead of an offer")
            offer = offered.offer
            self._check(offer)
            table = await allocate(offer)
            first, size = await self._gather(channel, room, offer, table, timeout)
            return Received(offer=offer, first=first, bytes_received=size, seconds=time.monotonic() - begun)
        except BaseException:
            await _quietly(channel.send(CancelClaim(room=room)))
            raise
        finally:
            channel.close()

    async def _gather(
        self, channel: Channel, room: int, offer: Offer, table: torch.Tensor, timeout: float
    ) -> tuple[FirstToken, int]:
        """The first token and all ranks' KV, whichever comes first; a failure of one ends the others."""
        ending = asyncio.ensure_future(self._first_token(channel, room))
        pulls = [asyncio.ensure_future(self._pull(rank, offer, table, timeout)) for rank in offer.ranks]
        tasks = {ending, *pulls}
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        finally:
            for task in (ending, *pulls):
                task.cancel()
            await asyncio.gather(ending, *pulls, return_exceptions=True)
        return ending.result(), sum(task.result() for task in pulls)

    async def _first_token(self, channel: Channel, room: int) -> FirstToken:
        message = await channel.receive(Codec.to_claimant)
        check_room(message, room)
        if isinstance(message, ClaimFailed):
            raise HandoffError(message.message)
        if not isinstance(message, Prefilled):
            raise HandoffError(f"room {room} answered {type(message).__name__} instead of the first token")
        return message.first

    async def _pull(self, rank: RankAddress, offer: Offer, table: torch.Tensor, timeout: float) -> int:
        channel = await Channel.connect(rank.host, rank.port, self._host, CONNECT_SECONDS)
        try:
            await channel.send(Pull(request_id=offer.request_id, wait=timeout))
            size = await self._read(channel, rank, offer, table)
            await channel.send(
                PullReceived(request_id=offer.request_id, tokens=offer.prompt_tokens, size=size)
            )
            answer = await channel.receive(Codec.to_puller)
            check_request(answer, offer.request_id)
            if not isinstance(answer, Released):
                raise HandoffError(getattr(answer, "message", f"rank {rank.rank} did not confirm the transfer"))
            return size
        except BaseException:
            await _quietly(channel.send(CancelPull(request_id=offer.request_id)))
            raise
        finally:
            channel.close()

    async def _read(self, channel: Channel, rank: RankAddress, offer: Offer, table: torch.Tensor) -> int:
        """Pieces in order, written to the pool as they come; returns the bytes."""
        layers = range(*rank.layers)
        position = size = 0
        while True:
            message = await channel.receive(Codec.to_puller)
            check_request(message, offer.request_id)
            match message:
                case Piece(start=start, end=end, size=length):
                    if start != position or end > offer.prompt_tokens:
                        raise HandoffError(
                            f"rank {rank.rank} sent tokens {start} to {end} of request {offer.request_id}, "
                            f"token {position} is next of {offer.prompt_tokens}"
                        )
                    if length != (end - start) * rank.bytes_per_token:
                        raise HandoffError(
                            f"rank {rank.rank} sent {length} bytes for {end - start} tokens of "
                            f"{rank.bytes_per_token} bytes each"
                        )
                    payload = torch.empty(length, dtype=torch.uint8)
                    await channel.receive_into(payload.numpy().data)
                    await asyncio.to_thread(self._kv.import_tokens, table, start, end, layers, payload)
                    position, size = end, size + length
                case End(tokens=tokens):
                    if position != tokens or tokens != offer.prompt_tokens:
                        raise HandoffError(
                            f"rank {rank.rank} ended request {offer.request_id} after {position} of "
                            f"{offer.prompt_tokens} tokens"
                        )
                    return size
                case PullFailed(message=text):
                    raise HandoffError(text)
                case _:
                    raise HandoffError(f"rank {rank.rank} sent a {type(message).__name__} in the middle of a pull")

    def _check(self, offer: Offer) -> None:
        if offer.model_id != self._model_id:
            raise HandoffError(
                f"the prefill worker runs model {offer.model_id}, this decode worker {self._model_id}; "
                "start both with the same model"
            )
        for rank in offer.ranks:
            if rank.dtype != self._dtype:
                raise HandoffError(
                    f"rank {rank.rank} offers KV in {rank.dtype}, this decode worker uses {self._dtype}; "
                    "start both with the same dtype"
                )
        check_cover([rank.layers for rank in offer.ranks], self._num_layers)


def check_cover(parts: Sequence[tuple[int, int]], num_layers: int) -> None:
    """Raise HandoffError unless ``parts`` are all layers, each exactly once."""
    covered = [layer for first, end in sorted(parts) for layer in range(first, end)]
    if covered != list(range(num_layers)):
        raise HandoffError(
            f"the ranks offer layers {sorted(parts)}, which are not all {num_layers} layers exactly once"
        )


async def _quietly(sending: Awaitable[None]) -> None:
    """Tell the peer if it still listens; it notices the closed connection otherwise."""
    try:
        async with deadline.timeout(CANCEL_SECONDS):
            await sending
    except (PeerLost, asyncio.TimeoutError):
        return
