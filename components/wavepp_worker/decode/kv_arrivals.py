"""The KV arrivals thread: has a request's KV pulled into its blocks, then passes it on to the step loop.

One whose prompt runs here waits for blocks alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping

import torch

from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.decode.guide import COMPLETE_SECONDS, Guides
from wavepp_worker.decode.scheduler import Scheduler
from wavepp_worker.errors import HandoffError, RequestFailed, RequestTimeout, WaveppError, error_text
from wavepp_worker.handoff.decode.received import Received
from wavepp_worker.handoff.decode.receiver import KVReceiver
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.log_form import of_request
from wavepp_worker.model.lora import LoraAdapter

TURN_SECONDS = 1.0
"""How often the thread's event loop shows that it turns."""

logger = logging.getLogger(__name__)


class KvArrivals:
    """One asyncio loop in a thread of its own, one task per request that has no KV yet.

    Args:
        receiver: what transfers KV.
        scheduler: of the engine.
        guides: of the engine.
        vocab_size: first tokens must be below it.
        timeout: seconds a request may take until its KV and first token are here.
        on_failure: told when the thread cannot go on.
        watched: this thread.
        turn_seconds: that its event loop may be stuck in one turn.
        adapters: LoRA adapters that requests may go through, by name.
    """

    def __init__(
        self,
        receiver: KVReceiver,
        scheduler: Scheduler,
        guides: Guides,
        *,
        vocab_size: int,
        timeout: float,
        on_failure: Callable[[BaseException], None],
        watched: Watched,
        turn_seconds: float,
        adapters: Mapping[str, LoraAdapter],
    ) -> None:
        self._adapters = adapters
        self._receiver = receiver
        self._scheduler = scheduler
        self._guides = guides
        self._vocab_size = vocab_size
        self._timeout = timeout
        self._on_failure = on_failure
        self._watched = watched
        self._turn_seconds = turn_seconds
        self._tasks: dict[str, asyncio.Task[Received | None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kv arrivals", daemon=True)
        self._stopping: asyncio.Task[None] | None = None
        self.bytes_received = 0

    def start(self) -> None:
        self._thread.start()

    def submit(self, decoding: DecodingRequest) -> None:
        """Begin with a request, which this thread owns from now on."""
        self._call(lambda: self._begin(decoding))

    def cancel(self, request_id: str) -> None:
        """Stop receiving a request, so that the prefill worker lets go of it; it finishes as cancelled."""

        def stop() -> None:
            if (task := self._tasks.get(request_id)) is not None:
                task.cancel()

        self._call(stop)

    def stop(self) -> None:
        """Cancel everything and end the thread, without waiting for it."""

        def begin() -> None:
            # Once: a second would wait for a loop that the first has stopped.
            if self._stopping is None:
                self._stopping = self._loop.create_task(self._stop())

        self._call(begin)

    def close(self, timeout: float) -> None:
        """``stop``, and wait for it up to ``timeout`` seconds; idempotent."""
        if self._thread.is_alive():
            self.stop()
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error("the KV arrivals thread did not stop within %.1f s", timeout)

    def _begin(self, decoding: DecodingRequest) -> None:
        task = self._loop.create_task(self._receive(decoding))
        self._tasks[decoding.request_id] = task
        task.add_done_callback(lambda done: self._ended(decoding, done))
        if decoding.aborted:
            task.cancel()

    async def _receive(self, decoding: DecodingRequest) -> Received | None:
        request = decoding.request
        if request.grammar is not None:
            # First, as nobody needs the KV for a grammar that is refused.
            decoding.sequence.guide = await asyncio.wrap_future(self._guides.guide(request.grammar))
        if request.handoff is None:
            try:
                blocks = await asyncio.wait_for(self._blocks_for(decoding), self._timeout)
            except asyncio.TimeoutError as error:
                raise RequestTimeout(
                    f"no blocks for request {request.request_id} came free within {self._timeout:.1f} s; lower the load"
                ) from error
            decoding.table = torch.tensor(blocks, dtype=torch.int64)
            return None
        room = request.handoff.room

        async def allocate(offer: Offer) -> torch.Tensor:
            if offer.prompt_tokens != request.prompt_tokens:
                raise HandoffError(
                    f"request {request.request_id} has a prompt of {request.prompt_tokens} tokens, but "
                    f"bootstrap_room {room} offers KV of {offer.prompt_tokens}"
                )
            own = self._adapters[request.lora].key if request.lora else ""
            if offer.adapter != own:
                raise HandoffError(
                    f"request {request.request_id} goes through the LoRA adapter {own or 'none'} here, but "
                    f"{offer.adapter or 'none'} where it was prefilled; start both workers with the same lora_modules"
                )
            decoding.table = torch.tensor(await self._blocks_for(decoding), dtype=torch.int64)
            return decoding.table

        return await self._receiver.receive(
            request.handoff,
            allocate,
            self._timeout,
            lambda: decoding.state,
            lambda: self._scheduler.computed(decoding),
        )

    async def _blocks_for(self, decoding: DecodingRequest) -> list[int]:
        granted: asyncio.Future[list[int]] = self._loop.create_future()

        def settle(blocks: list[int]) -> None:
            if not granted.done():
                granted.set_result(blocks)

        self._scheduler.ask_for_blocks(decoding, lambda blocks: self._call(lambda: settle(blocks)))
        return await granted

    def _ended(self, decoding: DecodingRequest, task: asyncio.Task[Received | None]) -> None:
        """Whatever way the task ended, even before it began: pass the request on or finish it."""
        del self._tasks[decoding.request_id]
        try:
            if task.cancelled():
                self._scheduler.finish(decoding, "cancelled")
            elif (error := task.exception()) is not None:
                self._scheduler.fail(decoding, self._explained(decoding, error))
            else:
                self._continue(decoding, task.result())
        except Exception as error:
            self._on_failure(error)

    def _continue(self, decoding: DecodingRequest, received: Received | None) -> None:
        """Pass a request on; one that cannot be continued fails alone."""
        try:
            if received is None:
                self._scheduler.start(decoding)
            else:
                self._pass_on(decoding, received)
        except Exception as error:
            logger.exception(
                "request %s could not be continued",
                decoding.request_id,
                extra=of_request(decoding.request_id),
            )
            text = f"request {decoding.request_id} could not be continued from its first token"
            self._scheduler.fail(decoding, RequestFailed(f"{text}: {error_text(error)}"))

    def _pass_on(self, decoding: DecodingRequest, received: Received) -> None:
        self.bytes_received += received.bytes_received
        first = received.first.first
        if not 0 <= first.token < self._vocab_size:
            self._scheduler.fail(
                decoding,
                HandoffError(
                    f"the prefill worker's first token {first.token} of request {decoding.request_id} is "
                    f"outside the vocabulary of {self._vocab_size}"
                ),
            )
            return
        decoding.reused_tokens = received.first.reused_tokens
        decoding.arrived = Arrived(
            moments=received.moments,
            bytes_received=received.bytes_received,
            ranks=len(received.offer.ranks),
        )
        decoding.sequence.accept(first.token)
        reason = decoding.sequence.ended(COMPLETE_SECONDS)
        if reason is not None:
            self._scheduler.finish(decoding, reason, tokens=(first,))
        else:
            self._scheduler.emit(decoding, (first,))
            self._scheduler.start(decoding)

    def _explained(self, decoding: DecodingRequest, error: BaseException) -> WaveppError:
        if isinstance(error, WaveppError):
            return error
        name = decoding.request_id
        logger.error("receiving request %s failed", name, exc_info=error, extra=of_request(name))
        return HandoffError(f"the KV of request {name} could not be received: {error_text(error)}")

    def _call(self, function: Callable[[], object]) -> None:
        """Run ``function`` in the thread; silently not after the thread has stopped."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _show_turn(self) -> None:
        self._watched.busy("one turn of its event loop", self._turn_seconds + TURN_SECONDS)
        self._loop.call_later(TURN_SECONDS, self._show_turn)

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._show_turn()
        try:
            self._loop.run_forever()
        finally:
            self._watched.idle()
            self._loop.close()
            self._receiver.close()
