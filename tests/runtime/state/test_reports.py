"""What a rank tells the engine of itself: runs of stored blocks, its books, and heartbeats."""

from __future__ import annotations

import pytest
from wavepp_worker import token_ids
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.protocol.events import AuditReport, CacheChanges, Heartbeat, StoredRun
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.state.reports import RankReports

from tests.support.rank_books import BLOCK, RankBooks


def changes(books: RankBooks) -> list[CacheChanges]:
    """What was told of the cache since the last call."""
    found = books.events.of(CacheChanges)
    books.events.told.clear()
    return found


def test_published_blocks_are_one_run_with_their_tokens() -> None:
    books = RankBooks()
    prompt = list(range(100, 110))
    local = books.run("r", prompt)
    (told,) = changes(books)
    assert told == CacheChanges(
        rank=0, stored=(StoredRun(tuple(local.keys), None, token_ids.pack(prompt[:8])),)
    )


def test_each_chunk_is_reported_with_the_block_before_it() -> None:
    """A block that a chunk only began comes with the chunk that completes it."""
    books = RankBooks()
    prompt = list(range(18))
    local = books.admit("r", prompt)
    books.lifecycle.materialise("r")
    stored = []
    for end in (6, 7, 16, 18):
        books.execute(local, end)
        stored.append([run for told in changes(books) for run in told.stored])
    keys = local.keys
    assert stored == [
        [StoredRun((keys[0],), None, token_ids.pack(prompt[:4]))],
        [],
        [StoredRun(tuple(keys[1:4]), keys[0], token_ids.pack(prompt[4:16]))],
        [],
    ]


def test_what_was_there_is_not_stored_again() -> None:
    books = RankBooks()
    prompt = list(range(16))
    local = books.run("first", prompt[:8])
    changes(books)
    again = books.run("second", prompt)
    (told,) = changes(books)
    assert told.stored == (StoredRun(tuple(again.keys[2:]), local.keys[1], token_ids.pack(prompt[8:])),)
    books.run("third", prompt)
    assert changes(books) == [], "no change, no message"


def test_blocks_with_gaps_are_runs_of_their_own() -> None:
    """Snapshots of recurrent layers: each names the block before it, which is not stored."""
    books = RankBooks([WindowSpec("recurrent", "recurrent", 8, interval=2 * BLOCK)])
    prompt = list(range(17))
    local = books.run("r", prompt)
    (told,) = changes(books)
    assert told.stored == (
        StoredRun((local.keys[1],), local.keys[0], token_ids.pack(prompt[4:8])),
        StoredRun((local.keys[3],), local.keys[2], token_ids.pack(prompt[12:16])),
    )


def test_only_rank_0_sends_the_tokens() -> None:
    books = RankBooks(rank=2)
    local = books.run("r", list(range(8)))
    (told,) = changes(books)
    assert told == CacheChanges(rank=2, stored=(StoredRun(tuple(local.keys), None),))


def test_a_run_says_under_which_salt_and_adapter_it_is_stored() -> None:
    books = RankBooks()
    books.lifecycle.announce(PrefillRequest.of("r", list(range(8)), salt="tenant", lora="adapter"))
    local = books.requests.known("r")
    assert books.cache.prepare("r", local.keys, 8, 0) is not None
    books.requests.admit("r", 0)
    books.lifecycle.materialise("r")
    books.execute(local, 8)
    ((run,),) = [told.stored for told in changes(books)]
    assert (run.salt, run.lora) == ("tenant", "adapter")


def test_heartbeats_tell_load_progress_and_its_age() -> None:
    books, now = RankBooks(rank=3), [100.0]
    reports = RankReports(
        rank=3, events=books.events, requests=books.requests, cache=books.cache, clock=lambda: now[0]
    )
    now[0] = 102.0
    assert reports.heartbeat(0, 0).wave_age == 2.0, "since the start, before the first wave"
    reports.wave_executed()
    reports.wave_executed()
    reports.round_applied()
    books.admit("r", list(range(10)))
    books.lifecycle.materialise("r")
    now[0] = 102.5
    assert reports.heartbeat(waiting=4, running=5) == Heartbeat(
        rank=3, wave_age=0.5, waiting=4, running=5, used_blocks=3, waves=2, rounds=1
    )


def test_sound_books_are_audited_without_problems() -> None:
    books = RankBooks(rank=1, blocks=16)
    books.run("r", list(range(10)))
    books.parts.reports.audit(7)
    assert books.events.of(AuditReport) == [
        AuditReport(audit_id=7, rank=1, capacity=16, free=14, reusable=2, live=(), problems=())
    ]


def test_an_audit_names_who_is_live_and_does_not_expect_rest_of_them() -> None:
    books = RankBooks()
    books.admit("r", list(range(10)))
    books.lifecycle.materialise("r")
    books.parts.reports.audit(1)
    (report,) = books.events.of(AuditReport)
    assert (report.live, report.problems, report.free) == (("r",), (), 13)


@pytest.mark.parametrize("live", [False, True])
def test_what_nobody_known_holds_is_a_problem_once_nobody_is_known(live: bool) -> None:
    books = RankBooks()
    assert books.cache.prepare("forgotten", [], 10, 0) is not None
    if live:
        books.announce("r", list(range(10)))
    books.parts.reports.audit(1)
    (report,) = books.events.of(AuditReport)
    assert [("forgotten" in problem) for problem in report.problems] == ([] if live else [True])


def test_books_that_do_not_balance_are_a_problem_also_under_load() -> None:
    books = RankBooks()
    books.admit("r", list(range(10)))
    books.lifecycle.materialise("r")
    with books.cache.windows() as (window,):
        window.tree.pools[0].take(1)
    books.parts.reports.audit(1)
    (report,) = books.events.of(AuditReport)
    (problem,) = report.problems
    assert problem.startswith("window attention: ")
