"""One rank's cache under churn, without a model."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from wavepp_worker.block_keys import KEY_BYTES, SECRET_BYTES, BlockKeyMaker, BlockKeys
from wavepp_worker.cache.moves import Copy, Move
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.rank.garbage_collection import collect_young_only
from wavepp_worker.runtime.rank.parts import make_parts

from bench.admission.long_prompts import LongPrompts
from bench.common.no_disk import NoDisk

MODEL = "bench"
CHURN_BLOCKS = 64
"""Blocks that one step of the churn publishes, and makes others be evicted for: a chunk of 2,048 tokens."""
WAIT = 60.0
"""Seconds after which a rank that does not answer is given up."""


def key_maker(traffic: LongPrompts) -> BlockKeyMaker:
    """As the engine has it: one secret for all ranks."""
    return BlockKeyMaker(bytes(SECRET_BYTES), MODEL, traffic.block_size)


class NoTiers(NoDisk):
    """Implements ``Tiers`` for a cache that is on the device alone."""

    def run(self, moves: Sequence[Move]) -> Sequence[Copy]:
        assert not moves
        return ()


class CachedRank:
    """A cache that holds the branches, pinned as if running, and a thread that keeps changing its tree.

    The thread stands for the LOOP thread: it runs admitted requests in no time, and publishes and evicts otherwise.

    Args:
        pause: seconds the thread sleeps between two changes.
    """

    def __init__(self, number: int, traffic: LongPrompts, pause: float) -> None:
        prefixes = traffic.prefixes()
        maker = key_maker(traffic)
        keys = [BlockKeys(maker.keys(prefix)) for prefix in prefixes]
        blocks = len({key for branch in keys for key in branch}) + traffic.room
        self.cache = RankCache([WindowSpec("attention", "full", blocks)], traffic.block_size)
        nowhere: Any = SimpleNamespace(send=lambda message: None)
        self.parts = make_parts(self.cache, NoTiers(), nowhere, rank=number, headroom_blocks=0, leases=True)
        self.stopping = threading.Event()
        self.admitted: deque[str] = deque()
        self.ended: deque[str] = deque()
        self.changes = 0
        self._pause = pause
        for at, branch in enumerate(keys):
            self._publish(f"fill-{at}", branch, traffic.block_size * len(branch))
            self.cache.lease(f"keep-{at}", branch, traffic.tokens, traffic.tokens)
        draw = random.Random(number)
        self._churn = [
            BlockKeys(draw.randbytes(KEY_BYTES * CHURN_BLOCKS)) for _ in range(2 * blocks // CHURN_BLOCKS)
        ]
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> CachedRank:
        # As a rank's process does.
        collect_young_only()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join(WAIT)
        if self._failure is not None:
            raise RuntimeError("the tree stopped changing while it was measured") from self._failure

    def await_change(self) -> None:
        """Return once the tree has changed after the call; RuntimeError if it does not."""
        before, end = self.changes, time.monotonic() + WAIT
        while self.changes == before:
            if self._failure is not None or time.monotonic() > end:
                raise RuntimeError("the tree did not change while it was measured") from self._failure
            time.sleep(0)

    def _loop(self) -> None:
        try:
            for keys in itertools.cycle(self._churn):
                if self.stopping.is_set():
                    return
                if self.admitted:
                    self._execute(self.admitted.popleft())
                else:
                    self.changes += self._publish("churn", keys, CHURN_BLOCKS * self.cache.block_size)
                if self._pause:
                    self.stopping.wait(self._pause)
        except Exception as failure:
            self._failure = failure

    def _execute(self, request_id: str) -> None:
        local = self.parts.requests.known(request_id)
        self.cache.materialise(request_id)
        self.cache.publish(request_id, local.request.prompt_tokens)
        self.parts.lifecycle.let_go(request_id)
        self.ended.append(request_id)

    def _publish(self, name: str, keys: BlockKeys, tokens: int) -> bool:
        """Run a prompt that reuses what it can; without room, nothing happens."""
        prepared = self.cache.prepare(name, keys, tokens, self.cache.match(keys, tokens))
        committed = prepared is not None and prepared.committed
        if committed:
            self.cache.materialise(name)
            self.cache.publish(name, tokens)
        self.cache.release(name)
        return committed
