"""The decode side of a hand-off: claims a room and gathers all ranks' layers into its own KV."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import torch

from wavepp_worker.errors import ConfigError, HandoffError, RequestTimeout
from wavepp_worker.handoff import deadline
from wavepp_worker.handoff.channel import Channel, PeerLost
from wavepp_worker.handoff.interface import BootstrapAddress, FirstToken, Offer, RankAddress
from wavepp_worker.handoff.nixl_library import nixl_installed
from wavepp_worker.handoff.nixl_reader import NixlReader
from wavepp_worker.handoff.wire import (
    PIECE_BYTES,
    Agent,
    CancelClaim,
    CancelPull,
    Claim,
    ClaimFailed,
    Codec,
    End,
    Message,
    Offered,
    Piece,
    Prefilled,
    Pull,
    PullFailed,
    Read,
    Regions,
    Released,
    check_request,
    check_room,
)
from wavepp_worker.handoff.wire import Received as Confirm
from wavepp_worker.model.stage import PagedKV

__all__ = ["BootstrapAddress", "KVReceiver", "Received"]

CONNECT_SECONDS = 5.0
CANCEL_SECONDS = 1.0
"""How long telling a peer that the request is not wanted any more may take."""
REASON_SECONDS = 1.0
"""How long a rank's refusal waits for the prefill worker's own sentence, which says more."""
PULL_ATTEMPTS = 3
"""Connections tried to one rank for one request."""
RETRY_SECONDS = 0.1

T = TypeVar("T")


class PullRefused(HandoffError):
    """A rank says that it does not hold the KV any more."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A finished hand-off: all layers of the prompt are in the blocks that ``allocate`` gave."""

    offer: Offer
    first: FirstToken
    bytes_received: int
    seconds: float


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
        self._host = host
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="kv-receive")
        self._nixl: NixlReader | None = None
        self._nixl_lock = threading.Lock()

    async def receive(
        self,
        host: str,
        port: int,
        room: int,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
    ) -> Received:
        """Claim a room, pull its KV from all ranks while the prompt may still be computing, and confirm.

        If this fails or is cancelled, the prefill worker is told, so that it frees the KV at once. Nothing is
        written to the request's blocks any more when it returns or raises.

        Args:
            host: address of the prefill worker's bootstrap server; ``port`` and ``room`` likewise.
            allocate: int64 ``[>= ceil(prompt_tokens / kv.block)]`` block table for an offer; may wait for
                room. What it raises is passed on.
            timeout: seconds for all of it.

        Raises:
            HandoffError: the prefill failed, the offer does not fit this worker, or a rank was lost; the
                message says which.
            RequestTimeout: it took longer than ``timeout``.
        """
        began = time.monotonic()
        try:
            async with deadline.timeout(timeout):
                offer, first, size = await self._claim_and_pull(host, port, room, allocate, timeout)
        except asyncio.TimeoutError as error:
            raise RequestTimeout(
                f"the KV of room {room} at {host}:{port} was not here within {timeout:.1f} s; the prefill "
                "takes longer, or no room for it came free. Raise handoff_timeout or lower the load"
            ) from error
        return Received(offer=offer, first=first, bytes_received=size, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Let go of threads and registered memory; no ``receive`` may be running. Idempotent."""
        self._threads.shutdown(wait=True)
        if self._nixl is not None:
            self._nixl.close()

    async def _claim_and_pull(
        self,
        host: str,
        port: int,
        room: int,
        allocate: Callable[[Offer], Awaitable[torch.Tensor]],
        timeout: float,
    ) -> tuple[Offer, FirstToken, int]:
        latest = time.monotonic() + timeout
        channel = await Channel.connect(host, port, self._host, CONNECT_SECONDS)
        unwanted = False
        try:
            await channel.send(Claim(room=room, wait=timeout))
            offered = await self._claimed(channel, room)
            if not isinstance(offered, Offered):
                raise HandoffError(f"room {room} was answered with {type(offered).__name__} before any offer")
            offer = offered.offer
            self._check(offer)
            prefill = asyncio.create_task(self._first_token(channel, room))
            gathering = asyncio.create_task(self._gather(offer, allocate, latest))
            try:
                await asyncio.wait({prefill, gathering}, return_when=asyncio.FIRST_EXCEPTION)
                if gathering.done() and isinstance(gathering.exception(), PullRefused):
                    # A failed prefill takes its KV back, and only the bootstrap server knows why it failed.
                    await asyncio.wait({prefill}, timeout=REASON_SECONDS)
            finally:
                await stop_all(prefill, gathering)
            first, size = results(prefill, gathering)
            return offer, first, size
        except _Refused as error:
            raise HandoffError(str(error)) from None
        except BaseException:
            unwanted = True
            raise
        finally:
            if unwanted:
                await _say_last(channel, CancelClaim(room=room))
            channel.close()

    async def _claimed(self, channel: Channel, room: int) -> Offered | Prefilled:
        message = await channel.receive(Codec.to_claimant)
        check_room(message, room)
        if isinstance(message, ClaimFailed):
            raise _Refused(message.message)
        return message

    async def _first_token(self, channel: Channel, room: int) -> FirstToken:
        message = await self._claimed(channel, room)
        if not isinstance(message, Prefilled):
            raise HandoffError(f"room {room} was offered twice")
        return message.first

    def _check(self, offer: Offer) -> None:
        """Raise ``HandoffError`` unless the offer is of this worker's model, dtype and layers."""
        name = f"request {offer.request_id}"
        if offer.model_id != self._model_id:
            raise HandoffError(
                f"{name}: the prefill worker serves model {offer.model_id}, this decode worker "
                f"{self._model_id}; start both with the same model"
            )
        for rank in offer.ranks:
            if rank.dtype != self._dtype:
                raise HandoffError(
                    f"{name}: rank {rank.rank} offers KV in {rank.dtype}, this decode worker holds "
                    f"{self._dtype}; set the same dtype on both"
                )
            if rank.transport == "nixl" and not nixl_installed():
                raise HandoffError(
                    f"{name}: rank {rank.rank} offers KV over NIXL, which is not installed here; install the "
                    "extra on the decode side with pip install 'wavepp-worker[nixl]', or set handoff to "
                    "socket on the prefill side"
                )
        next_layer = 0
        for first, end in sorted(rank.layers for rank in offer.ranks):
            if first != next_layer or end <= first:
                break
            next_layer = end
        if next_layer != self._num_layers:
            spans = ", ".join(f"{rank.layers[0]} to {rank.layers[1] - 1}" for rank in offer.ranks)
            raise HandoffError(
                f"{name}: the ranks offer layers {spans}; layers 0 to {self._num_layers - 1} are needed, "
                "each exactly once"
            )
        width = sum(rank.bytes_per_token for rank in offer.ranks)
        if width != self._kv.bytes_per_token:
            raise HandoffError(
                f"{name}: the ranks offer {width} bytes per token, this decode worker's KV takes "
                f"{self._kv.bytes_per_token}; both sides must have the same model and dtype"
            )

    async def _gather(
        self, offer: Offer, allocate: Callable[[Offer], Awaitable[torch.Tensor]], latest: float
    ) -> int:
        """Pull from all ranks at once; returns the KV bytes that came."""
        table = await allocate(offer)
        if len(table) * self._kv.block < offer.prompt_tokens:
            raise HandoffError(
                f"request {offer.request_id} got {len(table)} blocks of {self._kv.block} tokens for a prompt "
                f"of {offer.prompt_tokens}"
            )
        pulls = [asyncio.create_task(self._pull(offer, rank, table, latest)) for rank in offer.ranks]
        try:
            await asyncio.wait(pulls, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await stop_all(*pulls)
        return sum(results(*pulls))

    async def _pull(self, offer: Offer, rank: RankAddress, table: torch.Tensor, latest: float) -> int:
        for attempt in range(1, PULL_ATTEMPTS + 1):
            try:
                return await self._pull_once(offer, rank, table, latest)
            except PeerLost as error:
                if attempt == PULL_ATTEMPTS:
                    raise HandoffError(
                        f"request {offer.request_id}: rank {rank.rank} at {rank.host}:{rank.port} was lost "
                        f"{attempt} times while its KV was pulled: {error}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS * attempt)
        raise AssertionError("unreachable")

    async def _pull_once(self, offer: Offer, rank: RankAddress, table: torch.Tensor, latest: float) -> int:
        request_id = offer.request_id
        channel = await Channel.connect(rank.host, rank.port, self._host, CONNECT_SECONDS)
        unwanted = False
        agent: Agent | None = None
        position = size = 0
        try:
            await channel.send(Pull(request_id=request_id, wait=max(0.0, latest - time.monotonic())))
            while True:
                message = await channel.receive(Codec.to_puller)
                check_request(message, request_id)
                if isinstance(message, PullFailed):
                    raise PullRefused(message.message)
                if isinstance(message, Agent):
                    agent = message
                    continue
                if isinstance(message, End):
                    break
                if (
                    isinstance(message, Released)
                    or not position == message.start < message.end <= offer.prompt_tokens
                ):
                    raise HandoffError(
                        f"request {request_id}: rank {rank.rank} sent {type(message).__name__} out of order "
                        f"at token {position} of {offer.prompt_tokens}"
                    )
                if isinstance(message, Piece):
                    await self._take_piece(channel, message, rank, table)
                else:
                    await self._take_regions(channel, message, agent, rank, table)
                position = message.end
                size += rank.bytes_per_token * (message.end - message.start)
            expected = rank.bytes_per_token * offer.prompt_tokens
            if (position, size) != (offer.prompt_tokens, expected) or (message.tokens, message.size) != (
                position,
                size,
            ):
                raise HandoffError(
                    f"request {request_id}: rank {rank.rank} ended after {message.tokens} tokens in "
                    f"{message.size} bytes; {position} tokens in {size} bytes came, {offer.prompt_tokens} in "
                    f"{expected} were due"
                )
            await channel.send(Confirm(request_id=request_id, tokens=position, size=size))
            answer = await channel.receive(Codec.to_puller)
            check_request(answer, request_id)
            if not isinstance(answer, Released):
                reason = answer.message if isinstance(answer, PullFailed) else type(answer).__name__
                raise PullRefused(f"rank {rank.rank} did not take the confirmation: {reason}")
            return size
        except PeerLost:
            raise
        except BaseException:
            unwanted = True
            raise
        finally:
            if unwanted:
                await _say_last(channel, CancelPull(request_id=request_id))
            channel.close()

    async def _take_piece(
        self, channel: Channel, piece: Piece, rank: RankAddress, table: torch.Tensor
    ) -> None:
        expected = rank.bytes_per_token * (piece.end - piece.start)
        if piece.size != expected or expected > max(PIECE_BYTES, rank.bytes_per_token):
            raise HandoffError(
                f"request {piece.request_id}: rank {rank.rank} sends tokens {piece.start} to {piece.end} in "
                f"{piece.size} bytes; they take {expected}, and at most {PIECE_BYTES} may come at once"
            )
        payload = torch.empty(piece.size, dtype=torch.uint8)
        await channel.receive_into(payload.numpy().data)
        layers = range(*rank.layers)
        await self._in_thread(
            lambda: self._kv.import_tokens(table, piece.start, piece.end, layers, payload), None
        )

    async def _take_regions(
        self, channel: Channel, regions: Regions, agent: Agent | None, rank: RankAddress, table: torch.Tensor
    ) -> None:
        if agent is None:
            raise HandoffError(
                f"request {regions.request_id}: rank {rank.rank} sent regions before its NIXL agent"
            )
        stop = threading.Event()
        await self._in_thread(lambda: self._reader().read(agent, regions, rank, table, stop), stop)
        await channel.send(Read(request_id=regions.request_id, end=regions.end))

    async def _in_thread(self, work: Callable[[], T], stop: threading.Event | None) -> T:
        """Run ``work`` in a thread; if cancelled, set ``stop`` and wait until it has ended.

        It writes to blocks that belong to someone else as soon as the cancelled task is gone.
        """
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if stop is not None:
                stop.set()
            await all_done(running)
            raise

    def _reader(self) -> NixlReader:
        with self._nixl_lock:
            if self._nixl is None:
                try:
                    self._nixl = NixlReader(self._kv)
                except ConfigError as error:
                    raise HandoffError(str(error)) from error
            return self._nixl


class _Refused(HandoffError):
    """The bootstrap server's last word; there is nothing left to cancel."""


async def stop_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that still run and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await all_done(*tasks)


async def all_done(*tasks: asyncio.Future[Any]) -> None:
    """Wait until all have ended; being cancelled takes effect only then."""
    cancelled = False
    while running := {task for task in tasks if not task.done()}:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


def results(*tasks: asyncio.Future[Any]) -> list[Any]:
    """What the ended tasks returned; the first one's error that was not merely cancelled, if there is any."""
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


async def _say_last(channel: Channel, message: Message) -> None:
    """Send a last message and close, briefly; a peer that is gone needs no telling."""
    try:
        async with deadline.timeout(CANCEL_SECONDS):
            await channel.send(message)
    except (PeerLost, asyncio.TimeoutError):
        return
    await channel.finish(CANCEL_SECONDS)
