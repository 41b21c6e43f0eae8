"""Who holds what of a rank's cache: the life of a request from its lease to its release, in all windows at once.

    nothing --lease--> lease --reserve--> escrow --commit--> committed --materialise--> sequence

``commit`` may also take an endpoint below the lease's, and ``release`` goes back to nothing from anywhere. What
each step promises its callers is said in ``RankCache``.
A lease may be on blocks in the making: see ``Readers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from wavepp_worker.cache.common_endpoint import common_endpoint
from wavepp_worker.cache.moves import Copy, Move, Tier
from wavepp_worker.cache.node import Node
from wavepp_worker.cache.readers import Readers
from wavepp_worker.cache.reservation import Reservation
from wavepp_worker.cache.results import Begun, Holds, Materialised, Prepared
from wavepp_worker.cache.windows.share import Share
from wavepp_worker.cache.windows.window import Window


class Reservations:
    """The reservations of all requests of a rank. Not thread-safe: the rank's mutex is held.

    Endpoints are in tokens, multiples of ``block``. Steps that need a request in another state raise ValueError.
    """

    def __init__(self, windows: Sequence[Window], block_size: int) -> None:
        self._windows = windows
        self._block = block_size
        self._reservations: dict[str, Reservation] = {}
        self._readers = Readers(windows, block_size, self._reservations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reservations)

    def __len__(self) -> int:
        return len(self._reservations)

    def get(self, request_id: str) -> Reservation | None:
        return self._reservations.get(request_id)

    def shares(self, window: int) -> dict[str, Share]:
        """What each request holds of a window."""
        return {
            request_id: reservation.shares[window] for request_id, reservation in self._reservations.items()
        }

    def on_disk(self, request_id: str) -> tuple[Copy, ...]:
        """The blocks a request holds whose bytes are on disk only."""
        reservation = self._reservations.get(request_id)
        shares = reservation.shares if reservation is not None else []
        return tuple(
            Copy(number, node.key, node.tier, node.slot)
            for number, share in enumerate(shares)
            for node in self._windows[number].below_device(share)
            if node.tier == Tier.DISK
        )

    def holders(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """The requests that hold one of these blocks."""
        held = set(nodes)
        if not held:
            return ()
        return tuple(
            request_id
            for request_id, reservation in self._reservations.items()
            if any(not held.isdisjoint(share.pinned) for share in reservation.shares)
        )

    def usable(self, keys: Sequence[bytes], limit: int) -> int:
        """The largest endpoint, in blocks up to ``limit``, that a request could lease now."""
        return self._walk("", keys, limit)

    def lease(
        self,
        request_id: str,
        keys: Sequence[bytes],
        prompt_tokens: int,
        limit: int,
        writer: str | None = None,
    ) -> Reservation:
        """Pin what resuming needs at the largest usable endpoint up to ``limit`` blocks, or wait for ``writer``'s."""
        if request_id in self._reservations:
            raise ValueError(
                f"request {request_id} holds {self._reservations[request_id].state} already; release it first"
            )
        end, writer = self._reach(request_id, keys, limit, writer)
        reservation = Reservation(keys, prompt_tokens, end, self._shares(keys, end, writer))
        self._reservations[request_id] = reservation
        self._readers.follow(request_id, reservation, writer)
        self._shrink_destinations()
        return reservation

    def writer_of(self, request_id: str) -> str:
        """The request whose blocks in the making a request waits for; empty if for nobody's, or if it holds nothing."""
        reservation = self._reservations.get(request_id)
        return "" if reservation is None else reservation.writer or ""

    def check(self) -> None:
        """Raise AuditError unless every request that waits for blocks will get them."""
        self._readers.check()

    def reserve(self, request_id: str, headroom: int) -> bool:
        """Put room for what is after the endpoint into escrow; False if it is not there."""
        reservation = self._in_state(request_id, "lease")
        demands = self._demands(reservation.shares, reservation.end, reservation.prompt_tokens)
        if not all(
            window.has_room(blocks, headroom) for window, blocks in zip(self._windows, demands, strict=True)
        ):
            return False
        for window, blocks in zip(self._windows, demands, strict=True):
            window.reserve(request_id, blocks, committed=False)
        reservation.state = "escrow"
        return True

    def commit(self, request_id: str, endpoint: int) -> Prepared:
        """Fix a request at an endpoint up to its lease's, or lower its lease, or leave all as it was."""
        reservation = self._in_state(request_id, "lease", "escrow", "committed")
        end = min(reservation.end, endpoint // self._block)
        shares, writer = reservation.shares, reservation.writer
        if end < reservation.end:
            end, writer = self._reach(request_id, reservation.keys, end, writer, reservation)
            shares = self._shares(reservation.keys, end, writer)
        reached = Prepared(end * self._block, False)
        if reached.endpoint != endpoint:
            self._go_down(request_id, reservation, end, shares, writer)
            return reached
        demands = self._demands(shares, end, reservation.prompt_tokens)
        lent = [0] * len(demands)
        if writer is not None and shares is not reservation.shares:
            # What its writer lends it down there, which may be other blocks than before.
            lent = self._readers.more_lent(request_id, writer, end)
        needs = zip(self._windows, reservation.shares, shares, demands, lent, strict=True)
        for window, old, new, blocks, more in needs:
            if not window.has_committed_room(request_id, blocks + more, None if old is new else old):
                self._unpin(shares, unless=reservation.shares)
                return reached
        self._go_down(request_id, reservation, end, shares, writer)
        for window, blocks in zip(self._windows, demands, strict=True):
            window.reserve(request_id, blocks, committed=True)
        reservation.state = "committed"
        return Prepared(endpoint, True)

    def prepare(
        self,
        request_id: str,
        keys: Sequence[bytes],
        prompt_tokens: int,
        candidate: int,
        limit: int,
        headroom: int,
        writer: str | None = None,
    ) -> Prepared | None:
        """Lease and reserve, and commit if the lease keeps the candidate; None and nothing without the room."""
        reservation = self.lease(request_id, keys, prompt_tokens, limit, writer)
        endpoint = reservation.end * self._block
        if not self.reserve(request_id, headroom):
            self.release(request_id)
            return None
        if endpoint != candidate:
            return Prepared(endpoint, False)
        return self.commit(request_id, endpoint)

    def materialise(self, request_id: str) -> Materialised:
        """Allocate a request's blocks, which cannot fail for want of room once committed."""
        reservation = self._in_state(request_id, "escrow", "committed")
        if reservation.writer is not None:
            raise ValueError(
                f"request {request_id} waits for blocks that {reservation.writer} has not computed; it runs after it"
            )
        if (
            reservation.state == "escrow"
            and not self.commit(request_id, reservation.end * self._block).committed
        ):
            raise ValueError(
                f"request {request_id} has not been committed and its room is gone; commit first"
            )
        moves: list[Move] = []
        allocated = [
            window.materialise(request_id, share, reservation.end, reservation.prompt_tokens, moves)
            for window, share in zip(self._windows, reservation.shares, strict=True)
        ]
        reservation.state = "sequence"
        reservation.computed = reservation.begun = reservation.end * self._block
        self._readers.computed(reservation)
        return Materialised(
            tables=tuple(part.table for part in allocated),
            moves=tuple(moves),
            resume=tuple(part.resume for part in allocated),
            states=tuple(part.state for part in allocated),
        )

    def ask(self, request_id: str, end: int) -> None:
        """Have a committed request leave behind what resuming after ``end`` blocks needs, where there is room."""
        reservation = self._in_state(request_id, "committed")
        if reservation.end < end <= len(reservation.keys):
            for window, share in zip(self._windows, reservation.shares, strict=True):
                window.want(share, end)
            self._readers.ask(request_id, end)

    def begin(self, request_id: str, end: int) -> Begun:
        """A sequence's tokens up to ``end`` are about to be computed."""
        reservation = self._in_state(request_id, "sequence")
        moves: list[Move] = []
        taken = tuple(
            window.begin(request_id, share, end, moves)
            for window, share in zip(self._windows, reservation.shares, strict=True)
        )
        reservation.begun = end
        return Begun(
            snapshots=tuple(each.snapshots for each in taken),
            moves=tuple(moves),
            taken=tuple((each.first, each.blocks) for each in taken),
        )

    def publish(self, request_id: str, computed: int) -> None:
        """Make what is complete among a sequence's first ``computed`` tokens reusable."""
        reservation = self._complete(request_id, computed)
        for window, share in zip(self._windows, reservation.shares, strict=True):
            window.pass_by(request_id, share, computed)

    def publish_ahead(self, request_id: str, end: int) -> None:
        """The same of tokens that the wave at hand is about to compute, for those who read them in that wave."""
        if not all(window.prefix_tree for window in self._windows):
            raise ValueError(f"what {request_id} computes cannot be read in the same wave by every layer")
        self._complete(request_id, end)

    def release(self, request_id: str) -> bool:
        """Give back all a request holds; False if that is nothing."""
        reservation = self._reservations.pop(request_id, None)
        if reservation is None:
            return False
        self._readers.follow(request_id, reservation, None)
        for window, share in zip(self._windows, reservation.shares, strict=True):
            window.release(request_id, share)
        return True

    def _complete(self, request_id: str, computed: int) -> Reservation:
        reservation = self._in_state(request_id, "sequence")
        for window, share in zip(self._windows, reservation.shares, strict=True):
            window.publish(share, reservation.keys, computed)
        reservation.computed = computed
        self._readers.computed(reservation)
        return reservation

    def _in_state(self, request_id: str, *states: Holds) -> Reservation:
        reservation = self._reservations.get(request_id)
        if reservation is None or reservation.state not in states:
            held = "nothing" if reservation is None else reservation.state
            raise ValueError(f"request {request_id} holds {held}; this needs {' or '.join(states)}")
        return reservation

    def _reach(
        self,
        request_id: str,
        keys: Sequence[bytes],
        limit: int,
        writer: str | None,
        present: Reservation | None = None,
    ) -> tuple[int, str | None]:
        """The largest endpoint in blocks that a request can resume at, and the writer if it has to wait for one.

        The writer is asked for what it would not leave there by itself: before the request's own room is looked for.
        """
        end = self._walk(request_id, keys, limit, present)
        later = self._readers.reach(writer, keys, limit) if writer is not None and end < limit else 0
        if writer is None or later <= end:
            return end, None
        self._readers.ask(writer, later)
        return later, writer

    def _shares(self, keys: Sequence[bytes], end: int, writer: str | None) -> list[Share]:
        """What a request holds from its lease on."""
        if writer is not None:
            return [window.waiting_share(end) for window in self._windows]
        return [window.lease(keys, end) for window in self._windows]

    def _walk(
        self, request_id: str, keys: Sequence[bytes], limit: int, present: Reservation | None = None
    ) -> int:
        """The largest endpoint in blocks that all windows can resume at and pin.

        Args:
            present: the request's present reservation, whose lease makes room by going down.
        """
        usable = []
        for number, window in enumerate(self._windows):
            pinnable = window.pinnable(request_id)
            if present is not None:
                pinnable += window.freed_by_lowering(present.shares[number], limit)
            usable.append(partial(window.usable, keys, pinnable=pinnable))
        return common_endpoint(usable, limit)

    def _go_down(
        self, request_id: str, reservation: Reservation, end: int, shares: list[Share], writer: str | None
    ) -> None:
        """Let a request hold the shares of a lower endpoint, pinned already, instead of its present ones."""
        if shares is reservation.shares:
            return
        self._unpin(reservation.shares, unless=shares)
        reservation.end, reservation.shares = end, shares
        self._readers.follow(request_id, reservation, writer)
        if reservation.state == "committed":
            for window in self._windows:
                window.reserve(request_id, window.ledger.get(request_id).blocks, committed=False)
            reservation.state = "escrow"
        self._shrink_destinations()

    def _unpin(self, shares: list[Share], unless: list[Share]) -> None:
        if shares is not unless:
            for window, share in zip(self._windows, shares, strict=True):
                window.tree.unpin(share.pinned)

    def _shrink_destinations(self) -> None:
        for window in self._windows:
            window.shrink_destinations()

    def _demands(self, shares: list[Share], end: int, prompt_tokens: int) -> list[int]:
        return [
            window.demand(share, end, prompt_tokens)
            for window, share in zip(self._windows, shares, strict=True)
        ]
