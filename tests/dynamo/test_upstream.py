"""What clients are told where workers die under their requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from wavepp_worker.dynamo import upstream as module
from wavepp_worker.liveness.deaths import VARIABLE, Death, DeathNotes

from tests.support.proxied_frontend import (
    BROKEN,
    DONE,
    FAILED,
    GONE,
    NOT_READY,
    ONE,
    UNAVAILABLE,
    WRONG,
    proxied,
)

KILLED = "PrefillWorker:1 was ended by SIGKILL"


@pytest.fixture
def die(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "deaths.json"))
    monkeypatch.setattr(module, "NEWS_SECONDS", 0.3)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    notes = DeathNotes(tmp_path / "deaths.json")
    return lambda: notes.note(Death("PrefillWorker:1", "was ended by SIGKILL", time.monotonic()))


def test_who_got_nothing_yet_is_asked_for_again(die: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            die()
            frontend.script = [500, 200, [BROKEN, DONE], [ONE, DONE]]
            assert await client.ask() == (200, '{"text": "right"}')
            assert await client.ask() == (200, (ONE + DONE).decode())
            assert frontend.asked == 4

    asyncio.run(scenario())


def test_the_news_of_a_death_may_come_after_its_first_failure(die: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            frontend.script = [500, 200]
            asyncio.get_running_loop().call_later(0.1, die)
            assert (await client.ask())[0] == 200

    asyncio.run(scenario())


def test_whoever_cannot_be_answered_is_told_who_died(die: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            die()
            frontend.script = [500, 500, [BROKEN], 503, 503]
            for _ in range(3):
                status, text = await client.ask()
                assert (status, json.loads(text)["message"]) == (503, f"{KILLED}; ask again")
            assert frontend.asked == 5

    asyncio.run(scenario())


def test_the_reason_is_told_as_long_as_a_worker_is_missed(
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.0)

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            notes = DeathNotes(tmp_path / "deaths.json")
            notes.note(Death("PrefillWorker:1", "was ended by SIGKILL", time.monotonic() - 3600.0))
            frontend.script = [503, 503]
            assert json.loads((await client.ask())[1])["message"] == f"{KILLED}; ask again"
            notes.back("PrefillWorker:1", time.monotonic())
            status, text = await client.ask()
            assert (status, json.loads(text)["message"]) == (503, NOT_READY)

    asyncio.run(scenario())


def test_a_frontend_whose_workers_are_all_gone_does_not_say_that_it_never_had_any(
    die: Callable[[], None], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            DeathNotes(tmp_path / "deaths.json").note(
                Death("PrefillWorker:1", "was ended by SIGKILL", time.monotonic() - 3600.0)
            )
            frontend.script = [404]
            status, text = await client.ask()
            assert (status, json.loads(text)["message"]) == (503, f"{KILLED}; ask again")

    asyncio.run(scenario())


def test_who_is_back_is_not_blamed_for_another(die: Callable[[], None], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            notes = DeathNotes(tmp_path / "deaths.json")
            now = time.monotonic()
            notes.note(Death("PrefillWorker:0", "ended with exit code 70", now))
            notes.back("PrefillWorker:0", now)
            frontend.script = [503, 500, 500]
            back = "PrefillWorker:0 ended with exit code 70, and is just back; ask again"
            assert json.loads((await client.ask())[1])["message"] == back
            notes.note(Death("PrefillWorker:1", "was ended by SIGKILL", now))
            for script in ([503], [500, 500]):
                frontend.script = list(script)
                status, text = await client.ask()
                assert (status, json.loads(text)["message"]) == (503, f"{KILLED}; ask again")

    asyncio.run(scenario())


def test_who_died_long_ago_and_is_missed_or_just_back_may_be_in_discovery_yet(
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after a time without etcd, which does not count for its leases."""
    monkeypatch.setattr(module, "NEWS_SECONDS", 0.0)

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            notes = DeathNotes(tmp_path / "deaths.json")
            notes.note(Death("PrefillWorker:1", "was ended by SIGKILL", time.monotonic() - 40.0))
            frontend.script = [500, 500]
            assert json.loads((await client.ask())[1])["message"] == f"{KILLED}; ask again"
            notes.back("PrefillWorker:1", time.monotonic())
            frontend.script = [500, [ONE, DONE]]
            assert (await client.ask())[0] == 200
            assert frontend.asked == 4

    asyncio.run(scenario())


def test_a_stream_that_has_begun_ends_with_who_died(die: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            die()
            for begun in ([ONE, BROKEN, DONE], [ONE + BROKEN + DONE]):
                frontend.script = [begun]
                status, text = await client.ask()
                assert status == 200
                assert text.startswith(ONE.decode() + 'data: {"error": {"message": "' + KILLED)
                assert text.endswith("\n\n" + DONE.decode())
                assert "Internal server error" not in text
            assert frontend.asked == 2

    asyncio.run(scenario())


def test_failures_that_nobody_died_of_pass_once_as_they_are(die: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            frontend.script = [500, [ONE, BROKEN, DONE], [ONE, WRONG]]
            status, text = await client.ask()
            assert (status, FAILED["message"] in text) == (500, True)
            assert (await client.ask())[1] == (ONE + BROKEN + DONE).decode()
            die()
            assert (await client.ask())[1] == (ONE + WRONG).decode()
            assert frontend.asked == 3

    asyncio.run(scenario())


def test_a_stream_that_begins_with_a_refusal_is_that_refusal(die: Callable[[], None]) -> None:
    """As Dynamo 1.6 has begun it already when the worker refuses; whoever died has nothing to do with it."""

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            die()
            frontend.script = [[WRONG, DONE], [WRONG + DONE]]
            for _ in range(2):
                status, text = await client.ask()
                assert status == 400
                assert json.loads(text) == {"message": "no such tool", "type": "Bad Request", "code": 400}
            assert frontend.asked == 2

    asyncio.run(scenario())


def test_an_answer_at_which_the_frontend_panicked_is_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FAILED, "message", "Failed to await chat completions task")

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            frontend.script = [500, 200, 500, 500]
            assert await client.ask() == (200, '{"text": "right"}')
            status, text = await client.ask()
            assert (status, json.loads(text)["message"]) == (500, FAILED["message"])
            assert frontend.asked == 4

    asyncio.run(scenario())


def test_what_no_worker_has_begun_is_asked_for_once_more(
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody died: the worker that it was sent to could open no connection for the answer, and left discovery."""
    monkeypatch.setitem(FAILED, "message", "Failed to generate completions")

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            frontend.script = [500, 200, 500, 503, 500, 500]
            assert await client.ask() == (200, '{"text": "right"}')
            assert (await client.ask())[0] == 503
            status, text = await client.ask()
            assert (status, json.loads(text)["message"]) == (503, f"{FAILED['message']}; ask again")
            assert frontend.asked == 6

    asyncio.run(scenario())


@pytest.mark.parametrize("told", [False, True], ids=["paused", "died"])
def test_who_is_only_told_that_it_is_unavailable_is_asked_for_once_more(
    die: Callable[[], None], monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """As Dynamo 1.6 says where 1.4 says more, with 500: of a worker that died, and of one that was paused."""
    monkeypatch.setattr(module, "UNTOLD_SECONDS", 0.1)

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            if told:
                die()
            frontend.script = [UNAVAILABLE, 200, [GONE, DONE], 200, UNAVAILABLE, UNAVAILABLE]
            assert await client.ask() == (200, '{"text": "right"}')
            assert await client.ask() == (200, '{"text": "right"}')
            status, text = await client.ask()
            why = KILLED if told else "Service temporarily unavailable"
            assert (status, json.loads(text)["message"]) == (503, f"{why}; ask again")
            assert frontend.asked == 6

    asyncio.run(scenario())


def test_with_a_migration_limit_a_request_is_asked_so_often_whoever_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a launcher, too, that would say who did."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)

    async def scenario() -> None:
        async with proxied(migrations=3) as (frontend, _, client):
            frontend.script = [500, [BROKEN, DONE], UNAVAILABLE, 200, 500, 500, 500, 500]
            assert await client.ask() == (200, '{"text": "right"}')
            status, text = await client.ask()
            assert (status, json.loads(text)["message"]) == (500, FAILED["message"])
            assert frontend.asked == 8
            frontend.script = [[ONE, BROKEN, DONE]]
            assert (await client.ask())[1] == (ONE + BROKEN + DONE).decode(), "it has begun"

    asyncio.run(scenario())


def test_without_a_launcher_nobody_waits_for_its_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWS_SECONDS", 600.0)
    monkeypatch.delenv(VARIABLE, raising=False)

    async def scenario() -> None:
        async with proxied() as (frontend, _, client):
            frontend.script = [500]
            assert (await asyncio.wait_for(client.ask(), 60))[0] == 500

    asyncio.run(scenario())
