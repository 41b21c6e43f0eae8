"""A hand-off that reads blocks on a stream of its own, and notices what it should not have found there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.model.device.side_stream import SideStream

from tests.support.deferred_blocks import DeferredBlocks, Found, Place, complete, partly, state
from tests.support.deferred_gpu import GPU
from tests.support.rank_books import BLOCK, NotedSource


class DeferredSource(NotedSource):
    """Implements ``KVSource`` with the books of the real ones; the test decides who is read, and when.

    Attributes:
        checked: blocks that were read and held what they had to.
    """

    def __init__(self, blocks: DeferredBlocks) -> None:
        super().__init__()
        self.checked = 0
        self._blocks = blocks
        self._held: dict[str, HeldKv] = {}
        self._side = SideStream(GPU)
        self._reading = torch.cuda.Stream(GPU)

    def offer(
        self,
        request_id: str,
        block_table: torch.Tensor,
        prompt_tokens: int,
        ready: int,
        state: int | None = None,
    ) -> None:
        del self.secrets[request_id]
        written = self._side.now()
        self._held[request_id] = HeldKv(
            request_id, block_table, prompt_tokens, ready, heard=0.0, state=state, written=written
        )

    def advance(self, request_id: str, ready: int, block_table: torch.Tensor | None = None) -> None:
        if request_id in self._held:
            self._held[request_id].computed(ready, 0.0, block_table, self._side.now())

    def withdraw(self, request_id: str) -> None:
        if self.secrets.pop(request_id, None) is None and request_id in self._held:
            self._held[request_id].end("withdrawn")

    def readable(self) -> list[str]:
        """Whose blocks there is something to read of, which nobody reads."""
        return [
            name
            for name, held in self._held.items()
            if held.ready > held.sent and held.ending is None and not held.readers
        ]

    def read(self, request_id: str, keys: Sequence[bytes]) -> None:
        """Queue a read of all that is ready, after it is written. It is over when the stream has done it."""
        held = self._held[request_id]
        end, expected = held.ready, self._expected(held, keys)

        def look() -> None:
            for found in expected:
                self._blocks.check(found)

        def over() -> None:
            self.checked += len(expected)
            held.delivered(end, 0.0)
            held.end_read()

        held.begin_read()
        self._reading.wait_event(held.written)
        # Twice: a read takes a while, too.
        for work in (look, look, over):
            self._reading.queue(work)

    def settle(self, tell: Callable[[str, Settled], None]) -> None:
        """As the thread of the hand-off does: who has all of it, or may not have it, holds it no longer."""
        for name, held in [*self._held.items()]:
            if held.sent == held.prompt_tokens:
                held.end("received")
            if held.free:
                del self._held[name]
                tell(name, held.ending)

    def _expected(self, held: HeldKv, keys: Sequence[bytes]) -> list[Found]:
        """What is in the blocks from ``sent`` to ``ready``; the last one only with its last token."""
        start, end, whole = held.sent, held.ready, held.ready == held.prompt_tokens
        reader, found = f"the hand-off of {held.request_id}, tokens {start} to {end},", []
        table = torch.atleast_2d(held.table)
        for window, row in enumerate(self._blocks.rows):
            if row is None:
                if whole and held.state is not None:
                    place = Place(window, held.state)
                    found.append(Found(place, state(window, held.request_id, end), reader))
                continue
            for at in range(start // BLOCK, -(-end // BLOCK)):
                place, full = Place(window, int(table[row][at])), (at + 1) * BLOCK <= end
                if place.block >= 0 and full:
                    found.append(Found(place, complete(window, keys[at]), reader))
                elif place.block >= 0 and whole:
                    found.append(Found(place, partly(window, held.request_id, at, end), reader))
        return found
