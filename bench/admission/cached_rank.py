"""One rank's cache and its part in admission rounds, without a model and under churn, for ``bench.admission``."""

from __future__ import annotations

import itertools
import random
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import zmq
from wavepp_worker.cache.hashing import BlockHasher, cache_seed
from wavepp_worker.cache.moves import Copy, Move
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.admission.ownership import LeaseOwnership
from wavepp_worker.runtime.admission.round_actions import RoundActions
from wavepp_worker.runtime.admission.rounds_plane import FollowerRounds
from wavepp_worker.runtime.state.local_state import LocalState

MODEL = "bench"
SEED = cache_seed(MODEL, "", "")
CHURN_BLOCKS = 64
"""Blocks that one step of the churn publishes, and makes others be evicted for: a chunk of 2,048 tokens."""
WAIT = 60.0


@dataclass(frozen=True)
class Workload:
    """Prompts of ``tokens`` tokens: half of what they share is common to all, half to those of one branch.

    Attributes:
        shared: part of every prompt that is in the cache.
        room: blocks of the cache beside the branches.
    """

    tokens: int
    block: int
    shared: float
    branches: int
    room: int

    def prefixes(self) -> list[bytes]:
        """The branches, equal in every process: little-endian uint32 tokens, whole blocks."""
        draw = random.Random(0)
        length = 4 * int(self.tokens * self.shared) // (4 * self.block) * 4 * self.block
        trunk = draw.randbytes(length // 2 // (4 * self.block) * 4 * self.block)
        return [trunk + draw.randbytes(length - len(trunk)) for _ in range(self.branches)]

    def prompts(self, prefixes: list[bytes], count: int, draw: random.Random) -> list[bytes]:
        """``count`` prompts over the branches in turn, each with a new end."""
        return [
            prefix + draw.randbytes(4 * self.tokens - len(prefix))
            for prefix in (prefixes[at % len(prefixes)] for at in range(count))
        ]


class NoTiers:
    """Implements ``Tiers`` for a cache that is on the device alone."""

    def run(self, moves: Sequence[Move]) -> None:
        assert not moves

    def damaged(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        return ()


class CachedRank:
    """A cache that holds the branches, pinned as if running, and a thread that keeps changing its tree.

    The thread stands for the LOOP thread: it runs admitted requests in no time, and publishes and evicts otherwise.

    Args:
        pause: seconds the thread sleeps between two changes.
    """

    def __init__(self, number: int, workload: Workload, pause: float) -> None:
        prefixes = workload.prefixes()
        hasher = BlockHasher(workload.block)
        keys = [hasher.keys(prefix, SEED) for prefix in prefixes]
        blocks = len({key for branch in keys for key in branch}) + workload.room
        self.cache = RankCache([WindowSpec("attention", "full", blocks)], workload.block)
        config: Any = SimpleNamespace(rank=number, headroom=0, block_size=workload.block, model_id=MODEL)
        nowhere: Any = SimpleNamespace(send=lambda message: None)
        self.state = LocalState(config, nowhere, self.cache, NoTiers())
        self.hasher = hasher
        self.stopping = self.state.stopping
        self.admitted: deque[str] = deque()
        self.ended: deque[str] = deque()
        self.changes = 0
        self._pause = pause
        for at, branch in enumerate(keys):
            self._publish(f"fill-{at}", branch, workload.block * len(branch))
            self.cache.lease(f"keep-{at}", branch, workload.tokens, workload.tokens)
        draw = random.Random(number)
        self._churn = [
            [draw.getrandbits(64) for _ in range(CHURN_BLOCKS)] for _ in range(2 * blocks // CHURN_BLOCKS)
        ]
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> CachedRank:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._thread.join(WAIT)
        if self._failure is not None:
            raise RuntimeError("the tree stopped changing while it was measured") from self._failure

    def _loop(self) -> None:
        try:
            for keys in itertools.cycle(self._churn):
                if self.stopping.is_set():
                    return
                if self.admitted:
                    self._execute(self.admitted.popleft())
                else:
                    self.changes += self._publish("churn", keys, CHURN_BLOCKS * self.cache.block)
                if self._pause:
                    self.stopping.wait(self._pause)
        except Exception as failure:
            self._failure = failure

    def _execute(self, request_id: str) -> None:
        local = self.state.requests.known(request_id)
        self.cache.materialise(request_id)
        self.cache.publish(request_id, local.request.prompt_tokens)
        self.state.let_go(request_id)
        self.ended.append(request_id)

    def _publish(self, name: str, keys: list[int], tokens: int) -> bool:
        """Run a prompt that reuses what it can; without room, nothing happens."""
        prepared = self.cache.prepare(name, keys, tokens, self.cache.match(keys, tokens))
        committed = prepared is not None and prepared.committed
        if committed:
            self.cache.materialise(name)
            self.cache.publish(name, tokens)
        self.cache.release(name)
        return committed


def first_walk(cache: RankCache, keys: list[int], prompt_tokens: int) -> int:
    """The look-up of the two-walk baseline: block by block down the tree, under its mutex; tokens."""
    depth = 0
    limit = min(len(keys), (prompt_tokens - 1) // cache.block)
    with cache.windows() as windows:
        nodes = windows[0].tree.nodes
        parent = None
        while depth < limit:
            node = nodes.get(keys[depth])
            if node is None or node.parent is not parent:
                break
            parent = node
            depth += 1
    return depth * cache.block


class TwoWalkActions(RoundActions):
    """Looks prefixes up in the tree. The walk that pins is the lease's, as in the other."""

    def _endpoint(self, request_id: str) -> int:
        local = self._state.requests.known(request_id)
        return first_walk(self._state.cache, local.keys, local.request.prompt_tokens)


def round_actions(rank: CachedRank, two_walks: bool) -> RoundActions:
    return (TwoWalkActions if two_walks else RoundActions)(rank.state, LeaseOwnership(rank.state))


def run_follower(number: int, workload: Workload, address: str, pause: float, two_walks: bool) -> None:
    """The process of rank ``number``: takes part in every round until one says stop."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    rounds = FollowerRounds(context, address, WAIT)
    with CachedRank(number, workload, pause) as rank:
        actions = round_actions(rank, two_walks)
        while not rank.stopping.is_set():
            plan = rounds.next_plan(WAIT)
            if plan is None:
                raise TimeoutError(f"rank {number} got no plan for {WAIT:.0f} s")
            outcome = actions.apply(plan, rounds.exchange(actions.vote(plan)))
            rank.admitted.extend(admit.request_id for admit in outcome.admitted)
    rank.cache.check()
    rounds.close()
    context.term()
