"""Which requests hold KV blocks and which of them run: by priority, then who came first. Pure; the caller locks.

A request begins with blocks for the answer that is expected of it, and gets more as its answer grows. Where none are
left, those are taken back that others do not need yet; then whoever runs and is last in order is preempted. So who is
first in order always goes on, and everybody becomes first.
"""

from __future__ import annotations

from bisect import insort

from wavepp_worker.cache.pool import BlockPool
from wavepp_worker.errors import AuditError


def blocks_needed(prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """Blocks for a prompt and what it generates; the last token is never run, so it needs no place."""
    return -(-(prompt_tokens + max_tokens - 1) // block_size)


class Batch:
    """Requests that wait for blocks, that hold some, and that run.

    Args:
        blocks: capacity of the pool.
        max_num_seqs: most requests that hold blocks at once.
    """

    def __init__(self, blocks: int, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._pool = BlockPool(blocks)
        self._waiting: dict[str, int] = {}
        self._order: list[tuple[int, int, str]] = []
        self._rank: dict[str, tuple[int, int]] = {}
        self._most: dict[str, int] = {}
        self._early: set[str] = set()
        self._asked = 0
        self._held: dict[str, list[int]] = {}
        self._states = BlockPool(max_num_seqs)
        self._state_of: dict[str, int] = {}
        self._running: dict[str, None] = {}

    @property
    def capacity(self) -> int:
        return self._pool.capacity

    @property
    def free(self) -> int:
        return self._pool.free

    @property
    def waiting(self) -> tuple[str, ...]:
        """Requests that asked for blocks and have none yet, in the order in which they get some."""
        return tuple(request_id for _, _, request_id in self._order)

    @property
    def holding(self) -> tuple[str, ...]:
        """Requests that hold blocks, in the order they got them."""
        return tuple(self._held)

    @property
    def running(self) -> tuple[str, ...]:
        """Requests of the next step, in the order they started."""
        return tuple(self._running)

    @property
    def running_in_order(self) -> tuple[str, ...]:
        """The same, by priority and then who came first: the last of them is preempted first."""
        return tuple(sorted(self._running, key=self._rank.__getitem__))

    def held(self, request_id: str) -> int:
        """Blocks that a request holds."""
        return len(self._held.get(request_id, ()))

    def wanted(self, request_id: str) -> int:
        """Blocks that a request waits for, else those that it holds."""
        return self._waiting.get(request_id, self.held(request_id))

    def ask(
        self, request_id: str, blocks: int, priority: int = 0, *, most: int = 0, early: bool = False
    ) -> None:
        """Queue for blocks, behind those of at least the same ``priority``.

        Args:
            request_id: whose.
            blocks: that it gets at first.
            priority: of the request.
            most: that it can ever need, if that is more.
            early: its prompt is still computed elsewhere. It will hold blocks for as long as that takes, and cannot be
                preempted meanwhile.

        Raises:
            ValueError: the request asked before, or asks for none or for more than the pool has.
        """
        if request_id in self._waiting or request_id in self._held:
            raise ValueError(f"request {request_id} asked for blocks twice")
        if not 0 < blocks <= self.capacity:
            raise ValueError(f"request {request_id} asks for {blocks} blocks of a pool of {self.capacity}")
        self._rank[request_id] = -priority, self._asked
        self._most[request_id] = max(blocks, most)
        self._asked += 1
        if early:
            self._early.add(request_id)
        self._wait(request_id, blocks)

    def computed(self, request_id: str) -> None:
        """The prompt of a request is computed, if it asked early; unknown ids are ignored."""
        self._early.discard(request_id)

    def admit(self) -> list[tuple[str, list[int]]]:
        """Give blocks to those at the head of the queue for whom there is room: ``(request, its blocks)``.

        A block is left for each that runs, which may need it next. Those that asked early never hold so many that who
        is first in order, whoever that will be, could come to lack some: so one of them is passed by others, and one
        that did not waits for theirs.
        """
        admitted = []
        early = sum(len(self._held[each]) for each in self._early if each in self._held)
        most = max((self._most[each] for each in self._held), default=0)
        for request_id in self.waiting:
            blocks = self._waiting[request_id]
            if len(self._held) >= self.max_num_seqs or blocks > self._pool.free - len(self._running):
                break
            then_early = early + (blocks if request_id in self._early else 0)
            then_most = max(most, self._most[request_id])
            # Alone, it is in nobody's way.
            if then_early and self._held and then_early + then_most > self.capacity:
                if request_id in self._early:
                    continue
                break
            early, most = then_early, then_most
            self._leave_queue(request_id)
            self._held[request_id] = self._pool.take(blocks)
            [self._state_of[request_id]] = self._states.take(1)
            admitted.append((request_id, list(self._held[request_id])))
        return admitted

    def state(self, request_id: str) -> int:
        """The place for the state of recurrent layers, below ``max_num_seqs``, of a request that holds blocks."""
        return self._state_of[request_id]

    def start(self, request_id: str) -> None:
        """The request's KV is in its blocks: it takes part in every step until it is released.

        Raises:
            ValueError: the request holds no blocks, or runs already.
        """
        if request_id not in self._held or request_id in self._running:
            raise ValueError(f"request {request_id} cannot start: it holds no blocks, or runs already")
        self._running[request_id] = None

    def grow(self, request_id: str, blocks: int) -> list[int]:
        """Give a request that runs so many blocks more; returns them.

        Raises:
            ValueError: it does not run, or fewer are free.
        """
        if request_id not in self._running or blocks > self._pool.free:
            raise ValueError(
                f"request {request_id} cannot get {blocks} blocks of {self._pool.free}, or does not run"
            )
        more = self._pool.take(blocks)
        self._held[request_id] += more
        return more

    def shrink(self, request_id: str, keep: int) -> None:
        """Take back from a request that runs all but its first ``keep`` blocks.

        Raises:
            ValueError: it does not run, or would keep none.
        """
        if request_id not in self._running or keep < 1:
            raise ValueError(f"request {request_id} cannot keep {keep} blocks, or does not run")
        held = self._held[request_id]
        for block in held[keep:]:
            self._pool.drop_owner(block)
        del held[keep:]

    def preempt(self, request_id: str, blocks: int) -> None:
        """Take its blocks from a request that runs; it waits for ``blocks`` in the place that it had when it asked.

        Raises:
            ValueError: it does not run, or is to wait for more than the pool has.
        """
        if request_id not in self._running or not 0 < blocks <= self.capacity:
            raise ValueError(f"request {request_id} cannot be preempted for {blocks} blocks, or does not run")
        self._let_go(request_id)
        self._wait(request_id, blocks)

    def release(self, request_id: str) -> None:
        """Let go of whatever the request has, in any state; idempotent."""
        if request_id in self._waiting:
            self._leave_queue(request_id)
        self._rank.pop(request_id, None)
        self._most.pop(request_id, None)
        self._early.discard(request_id)
        self._let_go(request_id)

    def _wait(self, request_id: str, blocks: int) -> None:
        self._waiting[request_id] = blocks
        insort(self._order, (*self._rank[request_id], request_id))

    def _leave_queue(self, request_id: str) -> None:
        del self._waiting[request_id]
        self._order.remove((*self._rank[request_id], request_id))

    def _let_go(self, request_id: str) -> None:
        self._running.pop(request_id, None)
        for block in self._held.pop(request_id, []):
            self._pool.drop_owner(block)
        if (state := self._state_of.pop(request_id, None)) is not None:
            self._states.drop_owner(state)

    def check(self) -> None:
        """Raise AuditError unless every block is free or has exactly one holder, and the limits are kept."""
        self._pool.check()
        held = [block for blocks in self._held.values() for block in blocks]
        if len(set(held)) != len(held) or len(held) + self._pool.free != self.capacity:
            raise AuditError(
                f"requests hold {len(held)} blocks ({len(set(held))} different), {self._pool.free} are free, "
                f"but the pool has {self.capacity}"
            )
        self._states.check()
        if (
            self._state_of.keys() != self._held.keys()
            or len(self._held) + self._states.free != self.max_num_seqs
        ):
            raise AuditError(
                f"{len(self._held)} requests hold blocks and {len(self._state_of)} a state, but {self._states.free} of "
                f"{self.max_num_seqs} states are free"
            )
        if len(self._held) > self.max_num_seqs:
            raise AuditError(
                f"{len(self._held)} requests hold blocks, but max_num_seqs is {self.max_num_seqs}"
            )
        known = self._held.keys() | self._waiting.keys()
        if self._rank.keys() != known or self._most.keys() != known or not self._early <= known:
            raise AuditError(
                f"{len(self._rank)} requests have a place in the order, but others wait or hold blocks"
            )
        strays = sorted(self._running.keys() - self._held.keys())
        if strays:
            raise AuditError(f"requests {strays} run without blocks")
