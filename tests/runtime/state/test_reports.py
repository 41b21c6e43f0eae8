"""What a rank tells the engine of itself: runs of stored blocks, its books, and heartbeats."""

from __future__ import annotations

from functools import partial

import pytest
from wavepp_worker import token_ids
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.errors import HandoffError
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.events import AuditReport, CacheChanges, Failed, Heartbeat, StoredRun
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.state import reports
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import RequestTable
from wavepp_worker.runtime.tiers.block_origins import BlockOrigin, BlockOrigins

from tests.support.cache_bench import key
from tests.support.rank_books import BLOCK, Events, RankBooks


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
        rank=0, stored=(StoredRun(local.keys.packed, None, token_ids.pack(prompt[:8])),)
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
        [StoredRun(keys[0], None, token_ids.pack(prompt[:4]))],
        [],
        [StoredRun(b"".join(keys[1:4]), keys[0], token_ids.pack(prompt[4:16]))],
        [],
    ]


def test_what_was_there_is_not_stored_again() -> None:
    books = RankBooks()
    prompt = list(range(16))
    local = books.run("first", prompt[:8])
    changes(books)
    again = books.run("second", prompt)
    (told,) = changes(books)
    assert told.stored == (StoredRun(b"".join(again.keys[2:]), local.keys[1], token_ids.pack(prompt[8:])),)
    books.run("third", prompt)
    assert changes(books) == [], "no change, no message"


def test_blocks_with_gaps_are_runs_of_their_own() -> None:
    """Snapshots of recurrent layers: each names the block before it, which is not stored."""
    books = RankBooks([WindowSpec("recurrent", "recurrent", 8, interval=2 * BLOCK)])
    prompt = list(range(17))
    local = books.run("r", prompt)
    (told,) = changes(books)
    assert told.stored == (
        StoredRun(local.keys[1], local.keys[0], token_ids.pack(prompt[4:8])),
        StoredRun(local.keys[3], local.keys[2], token_ids.pack(prompt[12:16])),
    )


def test_only_rank_0_knows_the_tokens() -> None:
    books = RankBooks(rank=2)
    local = books.run("r", list(range(8)))
    (told,) = changes(books)
    assert told == CacheChanges(rank=2, stored=(StoredRun(local.keys.packed, None),))


def test_a_run_says_under_which_salt_and_adapter_it_is_stored() -> None:
    books = RankBooks()
    books.announce_request(PrefillRequest.of("r", list(range(8)), salt="tenant", lora="adapter"))
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
    reports.wave_executed(0.25)
    reports.wave_executed(0.5)
    reports.round_applied()
    books.admit("r", list(range(10)))
    books.lifecycle.materialise("r")
    now[0] = 102.5
    assert reports.heartbeat(waiting=4, running=5) == Heartbeat(
        rank=3,
        wave_age=0.5,
        waiting=4,
        running=5,
        used_blocks=3,
        waves=2,
        rounds=1,
        busy=0.75,
        tiers=books.cache.tiers(),
        idle=reports.idle.seconds(),
    )


def test_sound_books_are_audited_without_problems() -> None:
    books = RankBooks(rank=1, blocks=16)
    books.run("r", list(range(10)))
    books.parts.reports.audit(7)
    assert books.events.of(AuditReport) == [
        AuditReport(audit_id=7, rank=1, capacity=16, free=14, reusable=2, attached=2, live=(), problems=())
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


def numbers(run: StoredRun) -> tuple[tuple[int, ...], int | None]:
    """Keys and parent of a run, which are numbers in these tests."""
    number = partial(int.from_bytes, byteorder="little")
    return tuple(map(number, BlockKeys(run.keys))), None if run.parent is None else number(run.parent)


def restored(rank: int = 0, origins: BlockOrigins | None = None) -> tuple[RankCache, list[CacheChanges]]:
    """A rank that finds a chain of five blocks on disk, a branch of its second, and another chain."""
    cache, events = RankCache([WindowSpec("attention", "full", 2, disk_blocks=9)], BLOCK), Events()
    kept = [(1, None), (2, 1), (6, 2), (3, 2), (4, 3), (8, None), (5, 4), (9, 77)]
    for number, _ in kept if origins is not None else []:
        origins.add(key(number), BlockOrigin(token_ids.pack([number] * BLOCK), "s" * (number == 8), ""))
    cache.restore(
        (key(number), None if parent is None else key(parent), slot)
        for slot, (number, parent) in enumerate(kept)
    )
    reports = RankReports(rank=rank, events=events, requests=RequestTable(), cache=cache, origins=origins)
    reports.restored()
    reports.cache_changed(None)
    return cache, events.of(CacheChanges)


def test_what_the_disk_kept_is_told_once_with_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = BlockOrigins(BLOCK)
    _, (told,) = restored(origins=origins)
    assert [(*numbers(run), run.salt) for run in told.stored] == [
        ((1, 2, 6), None, ""),
        ((3, 4, 5), 2, ""),
        ((8,), None, "s"),
    ]
    assert [token_ids.unpack(run.tokens)[::BLOCK].tolist() for run in told.stored] == [
        [1, 2, 6],
        [3, 4, 5],
        [8],
    ]
    assert len(origins) == 7, "the block before 9 is not there"
    monkeypatch.setattr("wavepp_worker.runtime.state.reports.RESTORED_BLOCKS_PER_MESSAGE", 2)
    runs = [run for told in restored(origins=BlockOrigins(BLOCK))[1] for run in told.stored]
    assert [numbers(run) for run in runs] == [
        ((1, 2), None),
        ((6,), 2),
        ((3, 4), 2),
        ((5,), 4),
        ((8,), None),
    ]


def test_other_ranks_tell_only_which_blocks_the_disk_kept() -> None:
    _, (told,) = restored(rank=1)
    assert numbers(told.stored[0]) == ((1, 2, 6), None)
    assert (told.stored[0].tokens, told.stored[0].salt) == (b"", "")


def test_origins_are_kept_of_what_is_reusable_and_of_nothing_else() -> None:
    """Of blocks on all tiers: the disk may get them at any time."""
    origins = BlockOrigins(BLOCK)
    books = RankBooks(blocks=4)
    books.parts.reports._origins = origins
    local = books.run("r", list(range(16)))
    assert origins.get(local.keys[1]).tokens == token_ids.pack([4, 5, 6, 7])
    assert len(origins) == 4
    other = books.run("other", [9] * 9)
    assert len(origins) == 2 + sum(key in books.cache._windows[0].tree.nodes for key in local.keys)
    assert origins.get(other.keys[0]).tokens == token_ids.pack([9] * 4)


def test_why_a_request_failed_can_be_sent_whatever_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    # Not to the log itself: what runs tests beside each other cannot pass such a text on.
    monkeypatch.setattr(reports.logger, "error", lambda *message, **_: logged.append(message[0]))
    books = RankBooks(rank=2)
    books.parts.reports.failed("r", ValueError("no \ud800 here"))
    books.parts.reports.failed("r", HandoffError("the source is closed"))
    reasons = [Codec.event.decode(encode(each)).reason for each in books.events.of(Failed)]
    assert reasons == [
        "ValueError: no \\ud800 here",
        "the source is closed",
    ]
    assert len(logged) == 1, "what is not ours is a defect"


def test_a_heartbeat_has_the_waves_in_flight_and_the_time_in_which_there_were_some() -> None:
    now = 10.0
    books = RankBooks()
    told = RankReports(
        rank=0, events=books.events, requests=books.requests, cache=books.cache, clock=lambda: now
    )
    seen = []
    for waves, seconds in ((0, 1.0), (2, 2.0), (1, 4.0), (0, 8.0), (1, 16.0)):
        told.in_flight(waves)
        now += seconds
        beat = told.heartbeat(waiting=0, running=0)
        seen.append((beat.in_flight, beat.active))
    assert seen == [(0, 0.0), (2, 2.0), (1, 6.0), (0, 6.0), (1, 22.0)]
