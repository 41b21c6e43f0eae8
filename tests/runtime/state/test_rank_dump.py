"""What a rank says of itself: who holds what, no prompt, and not more than fits a screen or two."""

from __future__ import annotations

import msgspec
from wavepp_worker.cache.results import EscrowSums, Holding
from wavepp_worker.runtime.protocol import rank_state as protocol
from wavepp_worker.runtime.state.rank_dump import rank_state

from tests.support.rank_books import RankBooks


def dump(books: RankBooks) -> protocol.RankState:
    return rank_state(3, books.requests, books.cache, books.reports)


def test_a_dump_says_of_every_request_what_it_holds() -> None:
    books = RankBooks(handoff=False)
    books.run("before", [1] * 10)
    books.admit("committed", [1] * 11)
    running = books.admit("running", [2] * 9)
    books.lifecycle.materialise("running")
    books.execute(running, 5)
    books.announce("announced", [3] * 4)
    told = dump(books)
    assert (told.dump_id, told.rank, told.known) == (3, 0, 3)
    committed, computing, announced = told.requests
    assert committed.holding == Holding("committed", 8, 2, 1, "", 0)
    assert (computing.position, computing.endpoint) == (5, 0)
    assert computing.holding == Holding("sequence", 0, 3, 0, "", 0)
    assert (announced.endpoint, announced.holding) == (None, None)
    assert told.escrows == EscrowSums(reserved=1, promised=1, destinations=0)
    assert told.use.held == 5


def test_a_dump_of_many_requests_is_bounded_and_has_no_prompt() -> None:
    books = RankBooks(blocks=8, handoff=False)
    for number in range(200):
        books.announce(f"request-{number:03}", [7171] * 5000)
    told = dump(books)
    assert (told.known, len(told.requests)) == (200, protocol.MOST_REQUESTS)
    assert told.requests[0].request_id == "request-000"
    encoded = msgspec.json.encode(told)
    assert len(encoded) < 400 * protocol.MOST_REQUESTS
    assert b"7171" not in encoded
