"""What a waiting request shares with others that are admitted, being prepared, or wait like it. Rank 0 only; pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import islice

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.runtime.admission.branches import branches
from wavepp_worker.runtime.admission.in_the_making import InTheMaking, common_blocks, makes_next, shareable
from wavepp_worker.runtime.admission.next_blocks import NextBlocks
from wavepp_worker.runtime.admission.waiting import Waiting
from wavepp_worker.runtime.protocol.rounds import Admit

MAX_COMPARED, MAX_COMMON = 128, 8
"""Of those that wait, so many are looked at for a common first block, and of these so many for how much is common."""
MAX_BRANCHES_FROM = 128
"""Of those that wait, so many are looked at for where they leave the prompt of one that is being prepared."""


class Sharing:
    """Blocks in the making, in tokens, as far as they are reused.

    Attributes:
        making: the writers and their readers, in blocks.
    """

    def __init__(self, block_size: int) -> None:
        """``block_size``: 0 if nobody reuses what is still to be computed."""
        self.making = InTheMaking()
        self._block_size = block_size

    def reusable(self, keys: BlockKeys, prompt_tokens: int) -> int:
        """Blocks of a prompt that others may compute for it."""
        return shareable(keys, prompt_tokens, self._block_size) if self._block_size else 0

    def with_waiting(self, entry: Waiting, waiting: Iterable[Waiting]) -> int:
        """Tokens that a prompt has in common with one that waits: they are computed once.

        Args:
            waiting: those who are served last come first; few are looked at.
        """
        common = (
            common_blocks(entry.keys, other.keys, 1, min(entry.reusable, len(other.keys)))
            for other in islice(waiting, MAX_COMPARED)
            if makes_next(other.keys, entry.keys, 0, entry.reusable)
        )
        return self._block_size * max(islice(common, MAX_COMMON), default=0)

    def candidate(self, request_id: str, entry: Waiting) -> Admit:
        """The furthest endpoint there is for a request, with blocks that another is to compute."""
        present = entry.candidate or 0
        if not self._block_size:
            return Admit(request_id, present)
        found = self.making.writer(entry.keys, present // self._block_size, entry.reusable)
        if found is None:
            return Admit(request_id, present)
        writer, end = found
        return Admit(request_id, end * self._block_size, writer)

    def made_by_another(self, entry: Waiting, admit: Admit, others: NextBlocks) -> bool:
        """Whether one of ``others``, which are being prepared, will compute a request's next block.

        Once that one is admitted, it can be waited for.
        """
        if not self._block_size:
            return False
        return others.made(entry.keys, admit.endpoint // self._block_size, entry.reusable)

    def made_since(self, entry: Waiting, admit: Admit) -> bool:
        """Whether a request's next block was made by one that ended after it was looked up."""
        if not self._block_size:
            return False
        present = admit.endpoint // self._block_size
        return self.making.made_since(entry.ended_before, entry.keys, present, entry.reusable)

    def prepared_writer(self, entry: Waiting, endpoint: int, preparing: Mapping[str, Waiting]) -> str:
        """Of the requests that are being prepared, one that computes what another needs after ``endpoint`` next."""
        present = endpoint // self._block_size if self._block_size else entry.reusable
        found = (
            name
            for name, other in preparing.items()
            if makes_next(other.keys, entry.keys, present, entry.reusable)
        )
        return next(found, "")

    def branches(
        self, entry: Waiting, endpoint: int, waiting: Iterable[Waiting], seen: int = 0
    ) -> tuple[int, ...]:
        """Where others will resume of the prompt of a request that is being prepared at ``endpoint``.

        ``seen``: tokens that an earlier prompt began with as well.
        """
        if not self._block_size:
            return ()
        size, others = self._block_size, islice(waiting, MAX_BRANCHES_FROM)
        blocks = branches(entry.keys, endpoint // size, others, entry.reusable, seen // size)
        return tuple(end * self._block_size for end in blocks)

    def probed_by_another(self, admit: Admit, probed: Container[tuple[str, int]]) -> bool:
        """Whether one of this round finds out for a request if it can resume where it would.

        A writer of a hybrid cache may leave no snapshot there. Then whoever is prepared to resume there goes down, and
        all who were prepared at once would compute the same: so one of them goes first.

        Args:
            probed: the writers and endpoints of those that are prepared in this round.
        """
        if not admit.writer or self.making.sure(admit.writer, admit.endpoint // self._block_size):
            return False
        return (admit.writer, admit.endpoint) in probed

    def reads(self, admit: Admit) -> None:
        """A request is being prepared, behind a writer if it names one."""
        if admit.writer:
            self.making.reads(admit.request_id, admit.writer, admit.endpoint // self._block_size)

    def admitted(self, admit: Admit, keys: BlockKeys) -> None:
        """A request is admitted: from now on it is a writer."""
        if self._block_size:
            asked = [end // self._block_size for end in admit.branches]
            self.making.admitted(admit.request_id, keys, admit.endpoint // self._block_size, asked)

    def lowered(self, admit: Admit) -> None:
        """A request can resume no further than there."""
        if self._block_size:
            self.making.lowered(admit.request_id, admit.endpoint // self._block_size)

    def aborted(self, request_id: str) -> int:
        """An admitted request has lost its owner; returns up to which token it goes on for others, 0 if for none."""
        return self.making.aborted(request_id) * self._block_size

    def take_lowered(self) -> list[tuple[str, int]]:
        """Requests without an owner that fewer others need now, and up to which token they go on."""
        return [(name, end * self._block_size) for name, end in self.making.take_lowered()]
