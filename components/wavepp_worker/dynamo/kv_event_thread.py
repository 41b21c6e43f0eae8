"""The thread that publishes KV events through Dynamo's ``KvEventPublisher``."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from wavepp_worker import token_ids
from wavepp_worker.dynamo.kv_events import PendingEvents, RemovedEvent, StoredEvent, signed
from wavepp_worker.runtime.protocol.requests import IndexDelta

if TYPE_CHECKING:
    from dynamo.llm import KvEventPublisher

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0


class KvEventThread:
    """Publishes index changes from a thread of its own."""

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._pending = PendingEvents(block_size)
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def on_index(self, delta: IndexDelta) -> None:
        """Take in one change; never blocks on the publisher. Any thread, in the order of the changes."""
        with self._wake:
            self._pending.apply(delta)
            self._wake.notify()

    def start(self, publisher: KvEventPublisher) -> None:
        """Publish what is pending and all that follows."""
        self._thread = threading.Thread(target=self._run, args=(publisher,), name="kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; idempotent, also if never started."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, publisher: KvEventPublisher) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or len(self._pending) > 0)
                if self._stopping:
                    return
                events = self._pending.take()
            for event in events:
                try:
                    self._publish(publisher, event)
                except (OverflowError, TypeError, ValueError, RuntimeError):
                    logger.exception("the router does not learn of %d blocks", len(event.hashes))

    def _publish(self, publisher: KvEventPublisher, event: StoredEvent | RemovedEvent) -> None:
        hashes = [signed(block_hash) for block_hash in event.hashes]
        if isinstance(event, RemovedEvent):
            publisher.publish_removed(hashes)
            return
        first = event.blocks[0]
        tokens = b"".join(block.tokens for block in event.blocks)
        publisher.publish_stored(
            token_ids.unpack(tokens).tolist(),
            [self._block] * len(hashes),
            hashes,
            None if first.parent is None else signed(first.parent),
            lora_name=first.lora or None,
            cache_salt=first.salt or None,
        )
