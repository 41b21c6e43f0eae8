"""The decode side of a pull connection: brings one rank's layers of a request into this worker's KV."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from wavepp_worker.errors import ConfigError, HandoffError
from wavepp_worker.handoff.connection.channel import Channel, PeerLost
from wavepp_worker.handoff.connection.tasks import all_done, stop_all
from wavepp_worker.handoff.decode.introductions import Introductions
from wavepp_worker.handoff.decode.nixl_reader import NixlReader
from wavepp_worker.handoff.offer import Offer, RankAddress
from wavepp_worker.handoff.pull_messages import (
    PIECE_BYTES,
    TO_PULLER,
    AllSent,
    CancelPull,
    KvPiece,
    KvRegions,
    NixlAgent,
    Pull,
    PullFailed,
    PullReceived,
    PullValid,
    RegionsRead,
    SendKv,
    StatePiece,
    StillPulling,
    ToPuller,
    asking_seconds,
    check_request,
)
from wavepp_worker.model.device.cuda_device import page_locked_bytes, use_device
from wavepp_worker.model.device.side_stream import Moment, SideStream
from wavepp_worker.model.stage import PagedKV

CANCEL_SECONDS = 1.0
"""How long telling a peer that the request is not wanted any more may take."""
PULL_ATTEMPTS = 3
"""Connections tried to one rank for one request."""
RETRY_SECONDS = 0.1
"""What the n-th attempt waits for, times n, before the next."""
WRITER_THREADS = 4
"""Threads that write to this worker's KV, for all pulls together."""

T = TypeVar("T")
StateBlock = Callable[[], int]
"""This worker's block for a request's state, once the request has blocks."""


class PullRefused(HandoffError):
    """A rank says that it does not hold the KV any more."""


class Puller:
    """Pulls ranks' layers into one decode worker's memory, any number at a time.

    Args:
        kv: the decode worker's memory of all layers.
        host: local address that connections come from.
    """

    def __init__(self, kv: PagedKV, host: str) -> None:
        self._kv = kv
        self._side = SideStream(kv.device)
        self._host = host
        self._introductions = Introductions(host)
        self._threads = ThreadPoolExecutor(
            WRITER_THREADS, thread_name_prefix="kv-receive", initializer=use_device, initargs=(kv.device,)
        )
        self._nixl: NixlReader | None = None
        self._nixl_lock = threading.Lock()

    async def pull(
        self,
        offer: Offer,
        rank: RankAddress,
        table: asyncio.Future[torch.Tensor],
        latest: float,
        state: StateBlock | None = None,
    ) -> int:
        """Pull one rank's layers of the whole prompt, and confirm; returns the KV bytes that came.

        If this fails or is cancelled, the rank is told, so that it lets go at once. Nothing is written to the
        request's blocks any more when it returns or raises.

        Args:
            table: int64 ``[>= ceil(prompt_tokens / kv.block_size)]``, this worker's blocks for the request. The
                rank is asked at once, so that it knows who waits, and sends when there are any.
            state: this worker's block for the state of recurrent layers, known once there is a table.
            latest: when the caller will give up, in seconds of ``time.monotonic``. Only the rank is told: the
                caller cancels.

        Raises:
            PullRefused: the rank does not hold the KV any more.
            HandoffError: the rank was lost, it sent what was not due, or NIXL cannot be used here.
        """
        for attempt in range(1, PULL_ATTEMPTS + 1):
            try:
                return await self._pull_once(offer, rank, table, latest, state)
            except PeerLost as error:
                if attempt == PULL_ATTEMPTS:
                    raise HandoffError(
                        f"request {offer.request_id}: rank {rank.rank} at {rank.host}:{rank.port} was lost "
                        f"{attempt} times while its KV was pulled: {error}"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS * attempt)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Let go of threads and registered memory; no ``pull`` may be running. Idempotent."""
        self._threads.shutdown(wait=True)
        if self._nixl is not None:
            self._nixl.close()

    async def _pull_once(
        self,
        offer: Offer,
        rank: RankAddress,
        table: asyncio.Future[torch.Tensor],
        latest: float,
        state: StateBlock | None,
    ) -> int:
        wait = max(0.0, latest - time.monotonic())
        name, ready = offer.request_id, table.done()
        pull = Pull(request_id=name, secret=offer.secret, wait=wait, ready=ready)
        channel = await self._introductions.connect(rank.host, rank.port, pull)
        unwanted, asking = False, None
        try:
            asking = asyncio.create_task(self._keep_asking(channel, offer, rank))
            if not ready:
                await asyncio.wait({table})
                await channel.send(SendKv(request_id=name))
            await self._take_all(channel, offer, rank, table.result(), state)
            return await self._confirm(channel, offer, rank)
        except PeerLost:
            raise
        except BaseException:
            unwanted = True
            raise
        finally:
            if asking is not None:
                await stop_all(asking)
            if unwanted:
                await channel.say_last(CancelPull(request_id=offer.request_id), CANCEL_SECONDS)
            channel.close()

    async def _take_all(
        self,
        channel: Channel,
        offer: Offer,
        rank: RankAddress,
        table: torch.Tensor,
        state: StateBlock | None,
    ) -> None:
        """Take tokens in order, as they become ready, and the state, until the rank says that it has sent all."""
        request_id = offer.request_id
        agent: NixlAgent | None = None
        # No later step of this worker's touches the blocks, so that none is waited for with each piece.
        granted = self._side.now()
        position = states = came_bytes = 0
        try:
            while not isinstance(message := await self._next(channel, request_id), AllSent):
                if isinstance(message, PullFailed):
                    raise PullRefused(message.message)
                if isinstance(message, NixlAgent):
                    agent = message
                    continue
                if isinstance(message, StatePiece) and position == offer.prompt_tokens and not states:
                    await self._take_state(channel, message, rank, state, granted)
                    states = message.size
                    continue
                if (
                    isinstance(message, PullValid | StatePiece)
                    or not position == message.start < message.end <= offer.prompt_tokens
                ):
                    raise HandoffError(
                        f"request {request_id}: rank {rank.rank} sent {type(message).__name__} out of order "
                        f"at token {position} of {offer.prompt_tokens}"
                    )
                if isinstance(message, KvPiece):
                    await self._take_piece(channel, message, rank, table, offer.prompt_tokens, granted)
                else:
                    await self._take_regions(channel, message, agent, rank, table, offer.prompt_tokens)
                came_bytes += rank.piece_size(position, message.end, offer.prompt_tokens)
                position = message.end
        except PeerLost:
            if agent is not None and self._nixl is not None:
                await self._in_thread(functools.partial(self._nixl.forget, agent), None)
            raise
        size, due = came_bytes + states, rank.size(offer.prompt_tokens)
        came = (position, size)
        if came != (offer.prompt_tokens, due) or (message.tokens, message.size) != came:
            raise HandoffError(
                f"request {request_id}: rank {rank.rank} ended after {message.tokens} tokens in "
                f"{message.size} bytes; {position} tokens in {size} bytes came, {offer.prompt_tokens} in "
                f"{due} were due"
            )

    async def _keep_asking(self, channel: Channel, offer: Offer, rank: RankAddress) -> None:
        """Say again and again that this worker lives and wants the KV, however long it has to wait for it."""
        pause = asking_seconds(rank.patience)
        try:
            while True:
                await asyncio.sleep(pause)
                await channel.send(StillPulling(request_id=offer.request_id))
        except PeerLost:
            return  # Whoever receives on the connection learns it, too.

    async def _confirm(self, channel: Channel, offer: Offer, rank: RankAddress) -> int:
        """Say that everything is here; returns its KV bytes once the rank has said that they are valid."""
        size = rank.size(offer.prompt_tokens)
        await channel.send(PullReceived(request_id=offer.request_id, tokens=offer.prompt_tokens, size=size))
        answer = await self._next(channel, offer.request_id)
        if not isinstance(answer, PullValid):
            reason = answer.message if isinstance(answer, PullFailed) else type(answer).__name__
            raise PullRefused(f"rank {rank.rank} did not take the confirmation: {reason}")
        return size

    async def _next(self, channel: Channel, request_id: str) -> ToPuller:
        message = await channel.receive(TO_PULLER)
        check_request(message, request_id)
        return message

    async def _take_piece(
        self,
        channel: Channel,
        piece: KvPiece,
        rank: RankAddress,
        table: torch.Tensor,
        prompt_tokens: int,
        granted: Moment,
    ) -> None:
        expected = rank.piece_size(piece.start, piece.end, prompt_tokens)
        if piece.size != expected or expected > max(PIECE_BYTES, rank.bytes_per_token):
            raise HandoffError(
                f"request {piece.request_id}: rank {rank.rank} sends tokens {piece.start} to {piece.end} in "
                f"{piece.size} bytes; they take {expected}, and at most {PIECE_BYTES} may come at once"
            )
        if not piece.size:
            # All layers of the rank are recurrent, or have windows that have passed these tokens.
            return
        payload = page_locked_bytes(piece.size, self._kv.device)
        await channel.receive_into(payload.numpy().data)
        layers, firsts = range(*rank.layers), rank.firsts(prompt_tokens)

        def write() -> None:
            with self._side.copies(granted):
                self._kv.import_tokens(table, piece.start, piece.end, layers, payload, firsts)

        await self._in_thread(write, None)

    async def _take_state(
        self,
        channel: Channel,
        piece: StatePiece,
        rank: RankAddress,
        state: StateBlock | None,
        granted: Moment,
    ) -> None:
        states = self._kv.states
        if piece.size != rank.state_bytes or states is None or state is None:
            raise HandoffError(
                f"request {piece.request_id}: rank {rank.rank} sends a state in {piece.size} bytes, where "
                f"{rank.state_bytes} were offered"
            )
        payload = page_locked_bytes(piece.size, self._kv.device)
        await channel.receive_into(payload.numpy().data)
        block = state()

        def write() -> None:
            with self._side.copies(granted):
                states.import_state(block, range(*rank.layers), payload)

        await self._in_thread(write, None)

    async def _take_regions(
        self,
        channel: Channel,
        regions: KvRegions,
        agent: NixlAgent | None,
        rank: RankAddress,
        table: torch.Tensor,
        prompt_tokens: int,
    ) -> None:
        if agent is None:
            raise HandoffError(
                f"request {regions.request_id}: rank {rank.rank} sent regions before its NIXL agent"
            )
        stop = threading.Event()
        await self._in_thread(
            lambda: self._reader().read(agent, regions, rank, prompt_tokens, table, stop), stop
        )
        await channel.send(RegionsRead(request_id=regions.request_id, end=regions.end))

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
            # Nobody waits for what became of it, and asyncio would log an error that nobody has looked at.
            running.exception()
            raise

    def _reader(self) -> NixlReader:
        with self._nixl_lock:
            if self._nixl is None:
                try:
                    self._nixl = NixlReader(self._kv, self._host)
                except ConfigError as error:
                    raise HandoffError(str(error)) from error
            return self._nixl
