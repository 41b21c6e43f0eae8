"""Blocks in the making on one rank: who waits for whose blocks, and gets them.

A *reader* leases blocks that another request, its *writer*, has reserved the room for and not computed yet. It holds
none of them: the writer goes on until it has computed them all (rank 0 sees to that, see ``InTheMaking``), and the very
step that completes the last of them pins them for the reader. Until then the writer holds them, so that there is no
moment at which they could be reclaimed, and pinning them takes no room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from wavepp_worker.cache.common_endpoint import common_endpoint
from wavepp_worker.cache.reservation import Reservation
from wavepp_worker.cache.windows.window import Window
from wavepp_worker.errors import AuditError


class Readers:
    """Lets requests wait for one another's blocks. Not thread-safe: the rank's mutex is held.

    Args:
        reservations: of all requests, kept by the owner.
    """

    def __init__(
        self, windows: Sequence[Window], block_size: int, reservations: Mapping[str, Reservation]
    ) -> None:
        self._windows = windows
        self._block = block_size
        self._reservations = reservations

    def reach(self, writer: str, keys: Sequence[bytes], limit: int) -> int:
        """The largest endpoint up to ``limit`` blocks at which a request can resume from ``writer``'s blocks.

        0 if the writer holds nothing here any more, its prompt is shorter or begins with other blocks, or a window
        cannot lend what resuming there needs.
        """
        reservation = self._reservations.get(writer)
        if reservation is None or not 0 < limit <= len(reservation.keys):
            return 0
        if reservation.keys[limit - 1] != keys[limit - 1]:
            return 0
        ahead = [partial(self._ahead, writer, at) for at in range(len(self._windows))]
        end = common_endpoint(ahead, limit)
        return end if all(window.can_lend(writer, end) for window in self._windows) else 0

    def ask(self, writer: str, end: int) -> bool:
        """Have a request leave behind what resuming after ``end`` of its blocks needs, if it does not anyway.

        False if it cannot: for want of room, or as it computes as far already.
        """
        windows = range(len(self._windows))
        if any(self._ahead(writer, at, end) < end for at in windows):
            return False
        for at in windows:
            if self._left(writer, at, end) < end:
                self._windows[at].ask(writer, end)
        return True

    def more_lent(self, request_id: str, writer: str, end: int) -> list[int]:
        """Blocks of each window that ``writer`` lends beyond what it does, once a request waits for it to ``end``."""
        others = (
            self._reservations[name].end for name in self._reservations[writer].readers if name != request_id
        )
        ends = [*others, end]
        return [window.more_lent(writer, ends) for window in self._windows]

    def follow(self, request_id: str, reservation: Reservation, writer: str | None) -> None:
        """Let a request wait for ``writer``'s blocks up to its endpoint, or for nobody's."""
        before = self._reservations.get(reservation.writer) if reservation.writer is not None else None
        if before is not None and reservation.writer is not None:
            before.readers.remove(request_id)
            self._lend(reservation.writer)
        reservation.writer = writer
        if writer is not None:
            self._reservations[writer].readers.append(request_id)
            self._lend(writer)
            self.computed(self._reservations[writer])

    def computed(self, writer: Reservation) -> None:
        """A request has computed more: readers that waited for no more than that hold their prefix from now on."""
        for request_id in [*writer.readers]:
            reader = self._reservations[request_id]
            if reader.end * self._block <= writer.computed:
                reader.shares = [
                    window.hand_over(share, writer.keys, reader.end)
                    for window, share in zip(self._windows, writer.shares, strict=True)
                ]
                self.follow(request_id, reader, None)

    def check(self) -> None:
        """Raise AuditError unless every reader's writer is there and has its blocks still to compute."""
        for request_id, reader in self._reservations.items():
            for name in reader.readers:
                if self._reservations[name].writer != request_id:
                    raise AuditError(f"{name} does not wait for {request_id}, which believes so")
            if reader.writer is None:
                continue
            writer = self._reservations.get(reader.writer)
            if writer is None or request_id not in writer.readers:
                raise AuditError(f"{request_id} waits for {reader.writer}, which does not know")
            if writer.computed >= reader.end * self._block or len(writer.keys) < reader.end:
                raise AuditError(f"{request_id} waits for block {reader.end} of {reader.writer} for ever")
            if any(
                self._left(reader.writer, at, reader.end) < reader.end for at in range(len(self._windows))
            ):
                raise AuditError(
                    f"{request_id} waits for a snapshot after block {reader.end} that {reader.writer} will not take"
                )
            if any(share.pinned for share in reader.shares):
                raise AuditError(f"{request_id} holds blocks of a prefix for which it waits")

    def _lend(self, writer: str) -> None:
        ends = [self._reservations[name].end for name in self._reservations[writer].readers]
        for window in self._windows:
            window.lend(writer, ends)

    def _left(self, writer: str, window: int, limit: int) -> int:
        """The largest endpoint up to ``limit`` at which a window can resume from what a request will leave behind."""
        held = self._reservations[writer]
        return self._windows[window].ahead(writer, held.shares[window], held.end, held.prompt_tokens, limit)

    def _ahead(self, writer: str, window: int, limit: int) -> int:
        """The same if it may be asked."""
        left, held = self._left(writer, window, limit), self._reservations[writer]
        ahead = held.end < limit and held.begun < limit * self._block
        able = held.state in ("committed", "sequence") and ahead and self._windows[window].can_ask()
        return limit if left < limit and able else left
