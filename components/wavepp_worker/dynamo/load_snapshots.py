"""A worker's load as Dynamo's router reads it, and the thread that reports it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dynamo.common.backend.publisher import ComponentSnapshot

INTERVAL_SECONDS = 0.5


def load_snapshot(
    used_blocks: int, total_blocks: int, *, prompt_tokens: int = 0, reused_tokens: int = 0
) -> ComponentSnapshot:
    """The load of one worker.

    Args:
        used_blocks: KV blocks in use.
        total_blocks: KV blocks there are.
        prompt_tokens: of finished prefills; 0 while there is nothing to measure a hit rate by.
        reused_tokens: of these, tokens whose KV was reused.
    """
    return ComponentSnapshot(
        kv_used_blocks=used_blocks,
        kv_total_blocks=total_blocks,
        gpu_cache_usage=used_blocks / max(1, total_blocks),
        dp_rank=0,
        kv_cache_hit_rate=reused_tokens / prompt_tokens if prompt_tokens else None,
    )


class SnapshotThread:
    """Calls ``publish`` twice a second from a thread of its own."""

    def __init__(self, publish: Callable[[], None]) -> None:
        self._publish = publish
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; idempotent, also if never started."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * INTERVAL_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._publish()
