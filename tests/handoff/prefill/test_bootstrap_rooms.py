"""Rooms without sockets: what is remembered of one, how long, and whose KV nobody wants any more."""

from __future__ import annotations

import random

import msgspec
import pytest
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.offer import Offer
from wavepp_worker.handoff.prefill.bootstrap_rooms import ROOMS_OVER_REMEMBERED, BootstrapRoom, BootstrapRooms
from wavepp_worker.handoff.secret import Secret

from tests.support.handoff_sides import FIRST

OFFER = Offer(request_id="a", secret=Secret.fresh(), prompt_tokens=3, model_id="m", ranks=())


def claimed(rooms: BootstrapRooms, room: int, now: float = 0) -> BootstrapRoom:
    entry = rooms.claim(room, now)
    assert isinstance(entry, BootstrapRoom)
    return entry


def test_claim_and_prefill_meet_in_either_order() -> None:
    rooms = BootstrapRooms(10)
    early = claimed(rooms, 1)
    assert rooms.register(1, OFFER, hold=False, now=1)
    assert rooms.register(2, OFFER, hold=True, now=1)
    late = claimed(rooms, 2)
    assert (early.offer, early.open) == (OFFER, True)
    assert (late.offer, late.open) == (OFFER, False)
    rooms.open(2)
    assert late.open
    assert len(rooms) == 2


def test_the_first_outcome_stays() -> None:
    rooms = BootstrapRooms(10)
    rooms.register(1, OFFER, hold=False, now=0)
    rooms.finish(1, FIRST, 5)
    rooms.fail(1, "too late", 6)
    entry = claimed(rooms, 1)
    assert (entry.outcome, entry.since) == (FIRST, 5)


def test_news_of_a_room_that_is_over_do_not_bring_it_back() -> None:
    rooms = BootstrapRooms(10)
    rooms.register(1, OFFER, hold=False, now=0)
    claimed(rooms, 1)
    assert rooms.leave(1, told=True, now=1) is None
    rooms.open(1)
    rooms.finish(1, FIRST, 2)
    rooms.fail(1, "no", 2)
    assert len(rooms) == 0
    assert rooms.claim(1, 3) == "room 1 cannot be claimed: it has been answered"
    with pytest.raises(HandoffError, match="room 1 cannot be used for request a: it has been answered"):
        rooms.register(1, OFFER, hold=False, now=3)


def test_a_claimant_that_leaves_untold_leaves_an_unwanted_prefill() -> None:
    rooms = BootstrapRooms(10)
    rooms.register(1, OFFER, hold=False, now=0)
    claimed(rooms, 1)
    assert rooms.leave(1, told=False, now=0) is OFFER
    claimed(rooms, 2)
    assert rooms.leave(2, told=False, now=0) is None
    assert not rooms.register(2, OFFER, hold=False, now=1)
    with pytest.raises(HandoffError, match="room 2 cannot be used for request a: its claimant gave it up"):
        rooms.register(2, OFFER, hold=False, now=1)


def test_a_failure_is_kept_for_a_claim_unless_its_claimant_left() -> None:
    rooms = BootstrapRooms(10)
    rooms.fail(1, "no", 0)
    assert claimed(rooms, 1).outcome == "no"
    claimed(rooms, 2)
    rooms.leave(2, told=False, now=0)
    rooms.fail(2, "no", 0)
    assert len(rooms) == 1


def test_what_nobody_claims_in_time_is_forgotten_and_its_kv_unwanted() -> None:
    rooms = BootstrapRooms(10)
    other = msgspec.structs.replace(OFFER, request_id="b")
    rooms.register(1, OFFER, hold=False, now=0)
    rooms.register(2, other, hold=False, now=0)
    rooms.finish(2, FIRST, 5)
    rooms.register(3, OFFER, hold=False, now=0)
    rooms.fail(3, "no", 5)
    rooms.register(4, OFFER, hold=False, now=0)
    rooms.finish(4, FIRST, 5)
    claimed(rooms, 4)
    assert rooms.forget(14.9) == []
    assert len(rooms) == 4
    assert rooms.forget(15) == [other], "a prefill that failed holds no KV"
    assert len(rooms) == 2, "one runs still, one is claimed"
    assert rooms.claim(2, 16) == "room 2 cannot be claimed: nobody claimed it within 10.0 s"


def test_a_room_that_nobody_will_claim_is_over_at_once_unless_somebody_has() -> None:
    rooms = BootstrapRooms(10)
    others = [msgspec.structs.replace(OFFER, request_id=name) for name in "abcd"]
    for room, offer in enumerate(others):
        rooms.register(room, offer, hold=False, now=0)
    rooms.finish(0, FIRST, 1)
    rooms.fail(1, "no", 1)
    claimed(rooms, 2)
    assert [rooms.abandon(room) for room in range(5)] == [others[0], None, None, others[3], None]
    assert (len(rooms), rooms.awaited()) == (1, 1), "one is claimed"
    assert rooms.claim(0, 2) == "room 0 cannot be claimed: whoever was to claim it has left"
    assert isinstance(rooms.claim(4, 2), BootstrapRoom), "never heard of"


def test_memory_is_bounded() -> None:
    rooms = BootstrapRooms(10)
    for room in range(ROOMS_OVER_REMEMBERED + 1):
        claimed(rooms, room)
        rooms.leave(room, told=True, now=0)
    assert isinstance(rooms.claim(0, 0), BootstrapRoom)
    assert isinstance(rooms.claim(1, 0), str)
    claimed(rooms, 10_000)
    rooms.leave(10_000, told=False, now=0)
    rooms.forget(10)
    with pytest.raises(HandoffError, match="its claimant gave it up"):
        rooms.register(10_000, OFFER, hold=False, now=11)


class EveryEvent:
    """Rooms to which anything happens at any time; whoever holds KV must be told exactly once that nobody wants it."""

    ROOMS = 3
    KEEP = 10.0

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now = draw, 0.0
        self.rooms = BootstrapRooms(self.KEEP)
        self.registered: dict[int, Offer] = {}
        self.claimed: dict[int, BootstrapRoom] = {}
        self.over: set[int] = set()
        self.told: set[int] = set()
        self.failed: set[int] = set()
        self.let_go: list[str] = []

    def step(self) -> None:
        events = (self.register, self.settle, self.fail, self.claim, self.leave, self.abandon, self.forget)
        self.draw.choice(events)(self.draw.randrange(self.ROOMS))
        self.now += self.draw.choice((0.0, 0.0, 0.5, 3.0, 11.0))
        # None comes back.
        assert not self.over & self.rooms._rooms.keys()

    def wanted_no_more(self, offer: Offer | None) -> None:
        if offer is not None:
            self.let_go.append(offer.request_id)

    def register(self, room: int) -> None:
        offer = msgspec.structs.replace(OFFER, request_id=str(room))
        try:
            if self.rooms.register(room, offer, hold=self.draw.random() < 0.5, now=self.now):
                assert room not in self.over
                self.registered[room] = offer
        except HandoffError:
            assert room in self.over or room in self.rooms._rooms

    def settle(self, room: int) -> None:
        self.rooms.open(room)
        if room in self.registered:
            self.rooms.finish(room, FIRST, self.now)

    def fail(self, room: int) -> None:
        self.rooms.fail(room, "no", self.now)
        self.failed.add(room)

    def claim(self, room: int) -> None:
        entry = self.rooms.claim(room, self.now)
        assert isinstance(entry, BootstrapRoom) == (room not in self.over and room not in self.claimed)
        if isinstance(entry, BootstrapRoom):
            self.claimed[room] = entry

    def leave(self, room: int) -> None:
        if room in self.claimed and room not in self.over:
            told = self.claimed[room].outcome is not None and self.draw.random() < 0.5
            self.wanted_no_more(self.rooms.leave(room, told=told, now=self.now))
            self.over.add(room)
            if told:
                self.told.add(room)

    def abandon(self, room: int) -> None:
        known = room in self.rooms._rooms
        self.wanted_no_more(self.rooms.abandon(room))
        if known and room not in self.claimed:
            self.over.add(room)

    def forget(self, room: int) -> None:
        before = set(self.rooms._rooms)
        for offer in self.rooms.forget(self.now):
            self.wanted_no_more(offer)
        self.over |= before - self.rooms._rooms.keys()

    def end(self) -> None:
        """Every prefill ends, every claimant leaves, and time passes."""
        for room in range(self.ROOMS):
            self.fail(room)
            self.leave(room)
        self.now += self.KEEP + 1
        self.forget(0)
        assert (len(self.rooms), self.rooms.awaited(), self.rooms._unwanted) == (0, 0, {})
        assert len(set(self.let_go)) == len(self.let_go), "told twice"
        assert self.registered.keys() <= {*map(int, self.let_go)} | self.told | self.failed


def test_in_whatever_order_things_happen_kv_is_let_go_of_once() -> None:
    for seed in range(1500):
        world = EveryEvent(random.Random(seed))
        try:
            for _ in range(world.draw.randrange(5, 60)):
                world.step()
            world.end()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
