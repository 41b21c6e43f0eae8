"""Blocks in the making: which admitted requests will compute which blocks, and who waits for them. Rank 0 only; pure.

Every rank executes waves in the order in which rank 0 launches them. So a request may reuse blocks that nobody has
computed yet, if its first wave is launched after the wave that computes the last of them: rank 0 names the *writer*
when it asks the ranks to prepare the *reader*, and offers the reader's lane to the planner only then.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wavepp_worker.block_keys import KEY_BYTES, BlockKeys

MOST_REMEMBERED = 64
"""Writers that are remembered after they ended; whoever was looked up before more of them is looked up again anyway."""


@dataclass
class Writer:
    """An admitted request that is not over.

    Attributes:
        keys: of the full blocks of its prompt.
        start: blocks that it reuses itself.
        end: blocks that will be there when it is over.
        leaves: endpoints at which it leaves behind whatever resuming there needs, as far as that is known.
        gaps: ``(low, high)``: who wanted to resume after ``high`` blocks of it could do so after ``low`` at most.
        aborted: it goes on only for its readers.
    """

    keys: BlockKeys
    start: int
    end: int
    leaves: set[int] = field(default_factory=set)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    aborted: bool = False

    def resumable(self, end: int) -> int:
        """Where who wants to resume after ``end`` blocks can hope to."""
        for low, high in sorted(self.gaps, reverse=True):
            if low < end <= high:
                end = low
        return end


class InTheMaking:
    """The writers, in the order in which they were admitted, and the readers of each.

    Endpoints are in blocks here.
    """

    def __init__(self) -> None:
        self._writers: dict[str, Writer] = {}
        self._by_first_block: defaultdict[bytes, dict[str, Writer]] = defaultdict(dict)
        self._reads: dict[str, tuple[str, int]] = {}
        self._changed: dict[str, int] = {}
        self._lately_ended: deque[tuple[int, BlockKeys]] = deque(maxlen=MOST_REMEMBERED)
        self.ended_count = 0
        """Writers that have ended so far."""

    def __len__(self) -> int:
        """Admitted requests that are not over."""
        return len(self._writers)

    def under_way(self, most: int | None = None) -> int:
        """Blocks that those compute in all; of each at most so many."""
        computed = [writer.end - writer.start for writer in self._writers.values()]
        return sum(computed if most is None else (min(most, each) for each in computed))

    def admitted(self, request_id: str, keys: BlockKeys, endpoint: int, branches: Iterable[int] = ()) -> None:
        """All ranks hold a request, which will compute what follows ``endpoint``; if it reads, then up to there.

        Args:
            branches: endpoints at which it was asked to leave behind what resuming there needs.
        """
        writer = self._writers[request_id] = Writer(keys, endpoint, len(keys), {*branches})
        self._by_first_block[first_block(keys)][request_id] = writer
        if request_id in self._reads:
            name = self._reads[request_id][0]
            self._read(request_id, name, endpoint)
            if name in self._writers:
                self._writers[name].leaves.add(endpoint)

    def lowered(self, request_id: str, endpoint: int) -> None:
        """Some rank can let a request resume no further than there; remembered of its writer, if it has one."""
        name, wanted = self._reads.get(request_id, ("", 0))
        if name in self._writers:
            self._writers[name].gaps.append((endpoint, wanted))

    def sure(self, writer: str, endpoint: int) -> bool:
        """Whether a request is known to leave behind whatever resuming at ``endpoint`` needs."""
        return writer in self._writers and endpoint in self._writers[writer].leaves

    def writer(self, keys: BlockKeys, present: int, limit: int) -> tuple[str, int] | None:
        """Who makes most of the blocks after the first ``present``, up to ``limit``, and up to where.

        The first of several: it is the furthest.
        """
        best, reached = None, present
        for request_id, writer in self._by_first_block.get(first_block(keys), {}).items():
            end = min(writer.end, limit)
            if writer.start < end and reached < end and same_block(keys, writer.keys, reached):
                common = writer.resumable(common_blocks(keys, writer.keys, reached + 1, end))
                if common > max(writer.start, reached):
                    best, reached = request_id, common
        return (best, reached) if best is not None else None

    def made_since(self, ended_count: int, keys: BlockKeys, present: int, limit: int) -> bool:
        """Whether the block after the first ``present`` was made by a writer that ended after ``ended_count`` others.

        All ranks have it by now, but who was looked up before may have missed it on one of them. One wave can end more
        writers than are remembered: the block may have been made by one that is forgotten.
        """
        if present < limit and ended_count < self.ended_count - len(self._lately_ended):
            return True
        for number, made in reversed(self._lately_ended):
            if number < ended_count:
                return False
            if makes_next(made, keys, present, limit):
                return True
        return False

    def reads(self, request_id: str, writer: str, endpoint: int) -> None:
        """The ranks are asked to let a request wait for ``writer``'s blocks up to ``endpoint``."""
        self._read(request_id, writer, endpoint)

    def writer_of(self, request_id: str) -> str:
        """Whose blocks a request waits for; empty if for nobody's."""
        return self._reads[request_id][0] if request_id in self._reads else ""

    def read_by(self, request_id: str) -> tuple[str, int]:
        """Whose blocks a request waits for, and up to which; an empty name if for nobody's."""
        return self._reads.get(request_id, ("", 0))

    def stopped_reading(self, request_id: str) -> None:
        """A request has its blocks, or will never want them; unknown ids are ignored."""
        if request_id in self._reads:
            writer, _ = self._reads.pop(request_id)
            self._recount(writer)

    def aborted(self, request_id: str) -> int:
        """An admitted request has lost its owner: up to which block it has to go on, 0 if nobody reads from it."""
        writer = self._writers.get(request_id)
        if writer is None:
            return 0
        writer.aborted = True
        writer.end = self._needed(request_id)
        return writer.end

    def ended(self, request_id: str) -> None:
        """All ranks have computed what they ever will of a request; unknown ids are ignored."""
        writer = self._writers.pop(request_id, None)
        if writer is not None:
            self._lately_ended.append((self.ended_count, writer.keys))
            self.ended_count += 1
            alike = self._by_first_block[first_block(writer.keys)]
            del alike[request_id]
            if not alike:
                del self._by_first_block[first_block(writer.keys)]
        self._changed.pop(request_id, None)
        self.stopped_reading(request_id)

    def take_lowered(self) -> list[tuple[str, int]]:
        """Requests without an owner whose last readers went, and up to which block they have to go on."""
        lowered, self._changed = list(self._changed.items()), {}
        return lowered

    def check(self) -> None:
        """Raise ValueError unless every block that somebody waits for will be computed."""
        for reader, (name, endpoint) in self._reads.items():
            writer = self._writers.get(name)
            if writer is not None and endpoint > writer.end:
                raise ValueError(
                    f"{reader} waits for block {endpoint} of {name}, which ends with {writer.end}"
                )

    def _read(self, request_id: str, writer: str, endpoint: int) -> None:
        self._reads[request_id] = (writer, endpoint)
        self._recount(writer)

    def _needed(self, writer: str) -> int:
        return max((endpoint for name, endpoint in self._reads.values() if name == writer), default=0)

    def _recount(self, name: str) -> None:
        writer = self._writers.get(name)
        if writer is not None and writer.aborted and self._needed(name) < writer.end:
            writer.end = self._changed[name] = self._needed(name)


def first_block(keys: BlockKeys) -> bytes:
    """The key of the first block, empty without one: requests of other first blocks share nothing."""
    return block_at(keys, 0)


def block_at(keys: BlockKeys, at: int) -> bytes:
    """The key of a block, empty behind the last."""
    return keys.packed[KEY_BYTES * at : KEY_BYTES * (at + 1)]


def same_block(keys: BlockKeys, others: BlockKeys, at: int) -> bool:
    """Whether two prompts have the same first ``at + 1`` blocks; both have as many."""
    part = slice(KEY_BYTES * at, KEY_BYTES * (at + 1))
    return keys.packed[part] == others.packed[part] != b""


def common_blocks(keys: BlockKeys, others: BlockKeys, low: int, limit: int) -> int:
    """How many of the first ``limit`` blocks are the same, of which ``low`` are known to be."""
    while low < limit:
        middle = (low + limit + 1) // 2
        if same_block(keys, others, middle - 1):
            low = middle
        else:
            limit = middle - 1
    return low


def makes_next(first: BlockKeys, then: BlockKeys, present: int, limit: int) -> bool:
    """Whether a request will compute the block that another, which has ``present`` of its ``limit``, needs next."""
    return present < limit and same_block(first, then, present)


def shareable(keys: Sequence[bytes], prompt_tokens: int, block_size: int) -> int:
    """Most blocks of a prompt that can be reused: its last token is always computed."""
    return max(0, min(len(keys), (prompt_tokens - 1) // block_size))
