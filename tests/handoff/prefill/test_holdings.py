"""Everything a rank holds settles exactly once, in time, and whoever waits for a change wakes up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import AuditError, HandoffError
from wavepp_worker.handoff.prefill import holdings as module
from wavepp_worker.handoff.prefill.held_kv import HeldKv
from wavepp_worker.handoff.prefill.holdings import SETTLED_REMEMBERED, Holdings
from wavepp_worker.handoff.secret import Secret

TABLE = torch.arange(8)
SECRET = Secret.fresh()


class Books(Holdings):
    """Holdings with a clock that stands still, and a list of what settled how."""

    def __init__(self, timeout: float = 10.0) -> None:
        self.settled: list[tuple[str, str]] = []
        super().__init__(timeout, lambda name, how: self.settled.append((name, how)))

    def hold(self, request_id: str, table: torch.Tensor, prompt_tokens: int, ready: int) -> None:
        """As a rank does: nothing is held that was not expected."""
        self.expect(request_id, SECRET)
        super().hold(request_id, table, prompt_tokens, ready)

    def held(self, name: str) -> HeldKv:
        held = self.get(name)
        assert held is not None
        return held


@pytest.fixture
def clock() -> Iterator[Any]:
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    with mock.patch.object(module, "time", made):
        yield made


def test_settles_once_and_only_when_nobody_reads() -> None:
    books = Books()
    books.hold("a", TABLE, 100, 50)
    held = books.held("a")
    held.begin_read()
    held.begin_read()
    books.end("a", "withdrawn")
    books.end("a", "received")
    books.end_read(held)
    assert books.settled == []
    assert books.get("a") is held
    books.end_read(held)
    assert books.settled == [("a", "withdrawn")]
    assert books.get("a") is None
    books.end("a", "failed")
    assert books.settled == [("a", "withdrawn")]
    assert books.past("a") == "withdrawn"
    assert len(books) == 0


def test_a_duplicate_is_refused_until_the_first_has_settled() -> None:
    books = Books()
    books.hold("a", TABLE, 100, 7)
    first = books.held("a")
    with pytest.raises(HandoffError, match="request a is already offered"):
        books.hold("a", TABLE, 100, 0)
    assert books.held("a") is first
    books.end("a", "failed")
    books.hold("a", TABLE, 100, 0)
    assert books.past("a") is None
    assert books.held("a") is not first


def test_news_of_requests_that_are_not_held_are_ignored() -> None:
    books = Books()
    books.computed("gone", 5)
    books.end("gone", "withdrawn")
    assert (books.settled, books.past("gone"), len(books)) == ([], None, 0)


def test_only_what_is_overdue_expires_and_not_under_a_reader(clock: Any, caplog: Any) -> None:
    books = Books(timeout=10)
    for name in ("silent", "read", "computing"):
        books.hold(name, TABLE, 100, 50 if name == "computing" else 100)
    books.held("read").begin_read()
    clock.now += 6
    books.computed("computing", 60)
    clock.now += 3.9
    books.end_overdue()
    assert all(books.held(name).ending is None for name in ("silent", "read", "computing"))
    clock.now += 0.2
    with caplog.at_level(logging.WARNING):
        books.end_overdue()
        books.end_overdue()
    assert books.settled == [("silent", "expired")]
    assert books.held("read").ending == "expired"
    assert books.held("computing").ending is None
    assert caplog.text.count("of request silent expired: nobody asked for it for 10.0 s") == 1
    books.end_read(books.held("read"))
    assert books.settled == [("silent", "expired"), ("read", "expired")]


def test_thousands_that_expire_together_are_a_few_lines_of_the_log(clock: Any, caplog: Any) -> None:
    books = Books(timeout=10)
    names = [f"r{number}" for number in range(2000)]
    for name in names:
        books.hold(name, TABLE, 100, 100)
    clock.now += 10.1
    with caplog.at_level(logging.WARNING):
        books.end_overdue()
    assert books.settled == [(name, "expired") for name in names]
    assert len(caplog.messages) == 4
    assert caplog.messages[-1].startswith("the KV of 1997 more requests expired at the same time")


def test_expire_looks_again_and_again() -> None:
    books = Books(timeout=0.05)

    async def run() -> None:
        expiring = asyncio.ensure_future(books.expire())
        for name in ("a", "b"):
            books.hold(name, TABLE, 100, 100)
            assert await books.changed.wait_for(lambda name=name: books.past(name), 5)
        expiring.cancel()

    asyncio.run(run())
    assert books.settled == [("a", "expired"), ("b", "expired")]


def test_outcomes_of_long_ago_are_forgotten() -> None:
    books = Books()
    for number in range(SETTLED_REMEMBERED + 2):
        books.hold(f"r{number}", TABLE, 100, 0)
        books.end(f"r{number}", "received")
    assert books.past("r0") is None
    assert books.past("r1") is None
    assert books.past("r2") == "received"


def test_whoever_is_told_may_hold_the_request_again() -> None:
    """The owner learns of a settlement only when the blocks are no longer held."""
    seen: list[HeldKv | None] = []

    def again(name: str, how: str) -> None:
        seen.append(books.get(name))
        if len(seen) == 1:
            books.expect(name, SECRET)
            books.hold(name, TABLE, 100, 0)

    books = Holdings(10.0, again)
    books.expect("a", SECRET)
    books.hold("a", TABLE, 100, 0)
    books.end("a", "failed")
    assert seen == [None]
    assert books.get("a") is not None


def test_more_waits_for_tokens_to_send() -> None:
    books = Books()

    async def run() -> None:
        books.hold("a", TABLE, 100, 0)
        held = books.held("a")
        waiting = asyncio.ensure_future(books.more(held))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        books.computed("a", 10)
        assert await asyncio.wait_for(waiting, 5) is True
        held.delivered(10, 0)
        waiting = asyncio.ensure_future(books.more(held))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        books.computed("a", 100)
        assert await asyncio.wait_for(waiting, 5) is True
        held.delivered(100, 0)
        assert await asyncio.wait_for(books.more(held), 5) is False

    asyncio.run(run())


def test_more_ends_with_the_request_though_there_are_tokens() -> None:
    books = Books()

    async def run() -> None:
        books.hold("a", TABLE, 100, 10)
        held = books.held("a")
        held.delivered(10, 0)
        waiting = asyncio.ensure_future(books.more(held))
        await asyncio.sleep(0.02)
        books.end("a", "withdrawn")
        assert await asyncio.wait_for(waiting, 5) is False
        held.ready = 20
        assert await asyncio.wait_for(books.more(held), 5) is False

    asyncio.run(run())


def test_holding_wakes_who_waits_for_it() -> None:
    books = Books()

    async def run() -> None:
        waiting = asyncio.ensure_future(books.changed.wait_for(lambda: books.get("a"), 5))
        await asyncio.sleep(0.02)
        books.hold("b", TABLE, 100, 0)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        books.hold("a", TABLE, 100, 0)
        assert await asyncio.wait_for(waiting, 2) is True
        assert await books.changed.wait_for(lambda: books.get("c"), 0.05) is False

    asyncio.run(run())


def test_the_end_of_all_waits_for_reads_until_it_is_told_not_to() -> None:
    books = Books()
    for name in ("idle", "read", "failed"):
        books.hold(name, TABLE, 100, 50)
    held = books.held("read")
    held.begin_read()
    held.begin_read()
    books.held("failed").begin_read()
    books.end("failed", "failed")
    books.end_all()
    assert books.settled == [("idle", "withdrawn")]
    books.settle_all()
    assert books.settled == [("idle", "withdrawn"), ("read", "withdrawn"), ("failed", "failed")]
    books.end_read(held)
    assert len(books.settled) == 3, "a read that ends after all settles nothing"


def test_check_names_the_requests_with_impossible_books() -> None:
    books = Books()
    for name in ("fine", "wrong"):
        books.hold(name, TABLE, 100, 10)
    books.check()
    books.held("wrong").sent = 11
    with pytest.raises(AuditError, match=r"wrong for requests wrong$"):
        books.check()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "computed", "pull", "stop", "read", "end_read", "deliver", "end", "late"]),
        st.sampled_from("abc"),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_order_of_events_settles_everything_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    readers: dict[str, int] = {}
    settled: list[str] = []

    def note(name: str, how: str) -> None:
        assert readers[name] == 0
        assert books.past(name) == how
        settled.append(name)

    with mock.patch.object(module, "time", clock):
        books, held_names = Holdings(5.0, note), []
        for what, name, amount in steps:
            clock.now += amount / 10
            held = books.get(name)
            if what == "hold" and held is None:
                held_names.append(name)
                readers[name] = 0
                books.expect(name, SECRET)
                books.hold(name, TABLE, 12, amount)
            elif what == "computed":
                books.computed(name, amount)
            elif what == "late":
                clock.now += amount
                books.end_overdue()
            elif what == "end":
                books.end(name, "withdrawn")
            elif held is not None:
                if what == "pull":
                    held.start_pull(clock.now, amount)
                elif what == "stop":
                    held.stop_pull(clock.now)
                elif what == "read" and held.ending is None:
                    readers[name] += 1
                    held.begin_read()
                elif what == "end_read" and held.readers:
                    readers[name] -= 1
                    books.end_read(held)
                elif what == "deliver":
                    held.delivered(min(amount, held.ready), clock.now)
            books.check()
        books.end_all()
        for name in "abc":
            while (held := books.get(name)) is not None:
                readers[name] -= 1
                books.end_read(held)
    assert len(books) == 0
    assert sorted(settled) == sorted(held_names)
