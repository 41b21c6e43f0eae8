"""One process over its lives: what is said of each end, and when nobody starts it again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from wavepp_worker.compute_threads import SPINS
from wavepp_worker.liveness.deaths import Death
from wavepp_worker.serve import health_watch
from wavepp_worker.serve import keeper as module
from wavepp_worker.serve.discovery_entries import remove_entries
from wavepp_worker.serve.environment import base_environment
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.keeper import Keeper, StartFailed
from wavepp_worker.serve.ports import HeldPorts
from wavepp_worker.serve.process import Process

PROGRAM = Path(__file__).with_name("programs") / "dummy_service.py"


class Lines:
    """Stands in for the log and for the notes of deaths."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.died: list[Death] = []
        self.returned: list[float] = []

    def line(self, label: str, text: str, *, settled: bool) -> None:
        pass

    def say(self, text: str, style: str = "") -> None:
        self.said.append(text)

    def death(self, label: str, sentence: str, last_lines: list[str]) -> None:
        self.said.append(f"{label} {sentence}")

    def note(self, death: Death) -> None:
        self.died.append(death)

    def back(self, label: str, at: float) -> None:
        self.returned.append(at)

    def of(self, words: str) -> list[str]:
        return [line for line in self.said if words in line]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Soon:
        def __init__(self, per_minute: int) -> None:
            pass

        def after(self, lived: float, now: float) -> float:
            return 0.01

    monkeypatch.setattr(module, "Backoff", Soon)
    monkeypatch.setattr(module, "_WATCH_SECONDS", {"worker": 0.1})


async def keep(
    tmp_path: Path,
    *flags: str,
    until: Callable[[Keeper, Lines], Any],
    forget: Callable[[str], object] | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
    describes: bool = True,
    **limits: Any,
) -> Lines:
    """What was said of a dummy worker by the time ``until`` holds."""
    held, lines = HeldPorts(), Lines()
    (port,) = held.choose(1)
    process = Process(
        service="Worker",
        replica=0,
        kind="worker",
        argv=(sys.executable, str(PROGRAM), *flags),
        env={"DYN_SYSTEM_PORT": str(port), **env},
        port=port,
        url=f"http://127.0.0.1:{port}",
        describes=describes,
    )
    log: Any = lines
    keeper = Keeper(
        process,
        base_environment(),
        tmp_path / "scratch",
        log,
        KeepLimits(**limits),
        lambda: None,
        log,
        forget,
    )
    running = asyncio.create_task(keeper.run())
    deadline = time.monotonic() + 60
    try:
        while not until(keeper, lines):
            assert time.monotonic() < deadline, lines.said
            if running.done():
                running.result()
            await asyncio.sleep(0.02)
    finally:
        await keeper.stop(5.0)
        await asyncio.wait_for(running, 10)
        held.close()
    return lines


def test_a_service_that_says_how_its_threads_wait_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    given: list[Mapping[str, str]] = []
    start = module.Child.start

    async def noted(argv: Any, environment: Mapping[str, str], on_line: Any) -> module.Child:
        given.append(environment)
        return await start(argv, environment, on_line)

    monkeypatch.setattr(module.Child, "start", noted)
    for own in ({}, {"OMP_WAIT_POLICY": "PASSIVE"}):
        asyncio.run(keep(tmp_path, env=own, until=lambda keeper, _: keeper.ready))
    assert given[0]["GOMP_SPINCOUNT"] == SPINS
    assert given[1]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "GOMP_SPINCOUNT" not in given[1], "it would count more"


def test_who_refuses_its_configuration_again_and_again_is_let_be(tmp_path: Path) -> None:
    """It was well once, and others of the graph are: neither a loop for ever nor an end of everything."""

    async def check() -> None:
        flags = ["--exit-code=2", "--exit-after=0.5", "--say=error: --model: there is no directory /gone"]
        lines = await keep(
            tmp_path, *flags, until=lambda _, lines: lines.of("not started again"), start_seconds=60.0
        )
        (last,) = lines.of("not started again")
        assert last == (
            "Worker:0 refused its configuration 5 times in a row and is not started again: "
            "--model: there is no directory /gone"
        )
        assert len(lines.of("and is restarted in")) == 4

    asyncio.run(check())


def test_who_never_was_ready_is_given_up_after_five_lives(tmp_path: Path) -> None:
    """And ends the start, which would go on for ever."""

    async def check() -> None:
        with pytest.raises(StartFailed) as caught:
            await keep(tmp_path, "--exit-code=3", "--say=no room", "--sick-after=-1", until=seen.append_lines)
        assert str(caught.value) == (
            "Worker:0 ended with exit code 3 5 times without ever being ready; it said last: no room"
        )
        assert len(seen.lines.of("and is restarted in")) == 4

    class Seen:
        lines: Lines

        def append_lines(self, _: Keeper, lines: Lines) -> bool:
            self.lines = lines
            return False

    seen = Seen()
    asyncio.run(check())


def test_the_line_of_a_restart_has_the_cause_the_pause_and_the_count(tmp_path: Path) -> None:
    async def check() -> None:
        said = "FATAL: the engine died: rank 1 was ended by SIGKILL"
        lines = await keep(
            tmp_path,
            "--exit-code=70",
            "--exit-after=0.5",
            f"--say={said}",
            until=lambda _, lines: len(lines.of("restarted")) >= 2,
        )
        assert lines.of("restarted")[1] == (
            "Worker:0 ended with exit code 70 (the engine died: rank 1 was ended by SIGKILL), "
            "and is restarted in 0 s (restart 2)"
        )

    asyncio.run(check())


def test_who_does_not_answer_is_killed_and_started_again(tmp_path: Path) -> None:
    """It lives, so nothing else would tell that it hangs."""
    stopped: list[int] = []

    def until(keeper: Keeper, lines: Lines) -> bool:
        if keeper.ready and keeper.pid is not None and not stopped:
            stopped.append(keeper.pid)
            os.kill(keeper.pid, signal.SIGSTOP)
        return bool(lines.of("is up again"))

    async def check() -> None:
        lines = await keep(tmp_path, until=until, silent_seconds=1.0)
        (killed,) = lines.of("is killed")
        assert "has not answered a health check for" in killed
        assert "Worker:0 was ended by SIGKILL" in lines.of("restarted")[0]

    asyncio.run(check())


def test_who_is_told_to_stop_and_says_that_it_is_not_well_meanwhile_is_let_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamo's frontend does while it waits for its answers."""
    monkeypatch.setattr(health_watch, "UNHEALTHY_SECONDS", 0.2)

    async def check() -> None:
        lines = await keep(tmp_path, "--drains=1.5", until=lambda keeper, _: keeper.ready)
        assert lines.of("killed") == []

    asyncio.run(check())


def test_who_says_that_it_leaves_is_not_ready_any_more(tmp_path: Path) -> None:
    """Somebody else told it to stop. That no frontend finds it is not to be the frontend's fault."""
    told: list[int] = []
    seen: list[bool] = []

    def until(keeper: Keeper, lines: Lines) -> bool:
        if keeper.ready and keeper.pid is not None and not told:
            told.append(keeper.pid)
            os.kill(keeper.pid, signal.SIGTERM)
        if told and keeper.pid == told[0]:
            seen.append(keeper.ready)
        return bool(lines.of("is up again"))

    async def check() -> None:
        lines = await keep(tmp_path, "--leaves=1.0", until=until)
        assert seen.index(False) < 25, "of about fifty looks in the second for which it stays"
        assert not any(seen[seen.index(False) :])
        assert lines.died[0].why == "was told to stop"
        assert len(lines.of("restarted")) == 1

    asyncio.run(check())


def test_who_is_told_to_stop_may_say_that_it_is_not_well_until_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a frontend does while its last answers end, which may take longer than who is not well is given."""
    monkeypatch.setattr("wavepp_worker.serve.health_watch.UNHEALTHY_SECONDS", 0.2)
    told: list[float] = []

    def until(keeper: Keeper, lines: Lines) -> bool:
        if keeper.ready and keeper.pid is not None and not told:
            told.append(time.monotonic())
            os.kill(keeper.pid, signal.SIGTERM)
        return bool(lines.of("ended with exit code 0") or lines.of("is killed"))

    lines = asyncio.run(keep(tmp_path, "--leaves=1.5", "--drains=1.5", until=until))
    assert lines.of("is killed") == []
    assert time.monotonic() - told[0] > 1.5


def test_who_does_not_come_up_again_is_killed_and_started_again(tmp_path: Path) -> None:
    """The second life never becomes ready; without a bound, nobody would try a third."""
    marker = tmp_path / "lived"

    def until(keeper: Keeper, lines: Lines) -> bool:
        if keeper.ready and keeper.pid is not None and not marker.exists():
            marker.touch()
            os.kill(keeper.pid, signal.SIGKILL)
        return bool(lines.of("is not ready after"))

    async def check() -> None:
        lines = await keep(tmp_path, f"--sick-if={marker}", until=until, start_seconds=1.5)
        assert lines.of("is killed") == lines.of("(--start-timeout)")

    asyncio.run(check())


def test_a_worker_of_another_kind_is_ready_though_it_never_says_what_it_is(tmp_path: Path) -> None:
    lines = asyncio.run(keep(tmp_path, "--mute=1000", until=lambda keeper, _: keeper.ready, describes=False))
    assert lines.of("is up")


def test_a_worker_whose_adapters_are_still_to_come_is_not_ready(tmp_path: Path) -> None:
    waited: list[bool] = []

    def until(keeper: Keeper, _: Lines) -> bool:
        if keeper.about is not None:
            waited.append(keeper.about.entering)
            assert not (keeper.about.entering and keeper.ready)
        return keeper.ready

    asyncio.run(keep(tmp_path, "--entering=3", until=until))
    assert any(waited)


@pytest.mark.parametrize("mute", [0, 1])
def test_a_death_is_told_of_at_once_and_its_entries_leave_discovery(tmp_path: Path, mute: int) -> None:
    entry = tmp_path / "store" / "dynamo%2Fprefill%2F2a"
    entry.parent.mkdir()
    entry.touch()
    killed: list[int] = []

    def until(keeper: Keeper, lines: Lines) -> bool:
        assert killed or keeper.about is not None or not keeper.ready
        if keeper.ready and keeper.about is not None and keeper.pid is not None and not killed:
            assert keeper.about.instance == "2a"
            killed.append(keeper.pid)
            os.kill(keeper.pid, signal.SIGKILL)
        return bool(lines.of("is up again"))

    async def check() -> None:
        forget = partial(remove_entries, tmp_path / "store")
        lines = await keep(tmp_path, f"--mute={mute}", until=until, forget=forget)
        (death,) = lines.died
        assert (death.label, death.why[:20]) == ("Worker:0", "was ended by SIGKILL")
        assert not entry.exists()
        first, again = lines.returned
        assert first < death.at < again

    asyncio.run(check())


def test_a_failure_is_told_of_before_its_process_ends(tmp_path: Path) -> None:
    async def check() -> None:
        lines = await keep(
            tmp_path,
            "--exit-code=70",
            "--exit-after=1.0",
            "--say=FATAL: the engine died: rank 1 was ended by SIGKILL",
            until=lambda _, lines: lines.of("restarted"),
        )
        failed, ended = lines.died[:2]
        assert failed.why == "failed: the engine died: rank 1 was ended by SIGKILL"
        assert ended.why == "ended with exit code 70 (the engine died: rank 1 was ended by SIGKILL)"
        assert ended.at - failed.at > 0.5

    asyncio.run(check())


def test_a_paused_worker_is_missed_and_not_ended_until_it_is_resumed(tmp_path: Path) -> None:
    told: list[tuple[bool, bool]] = []
    paused: list[float] = []

    def until(keeper: Keeper, lines: Lines) -> bool:
        if not paused and keeper.ready:
            for word in ("LEAVING: ", "PAUSED: ", "FATAL: "):
                keeper._on_line(f"2026-01-01T00:00:00Z ERROR dynamo_runtime: wrong: user='{word}it'")
            assert (keeper.ready, keeper.paused, lines.died) == (True, False, []), "a client wrote that"
            keeper._on_line("PAUSED: takes no new requests until it is resumed")
            paused.append(time.monotonic())
            assert [death.why for death in lines.died] == ["was paused"], "clients are told what they miss"
        elif paused and time.monotonic() > paused[0] + 0.4 and not told:
            told.append((keeper.ready, keeper.paused))
            before = len(lines.returned)
            keeper._on_line("RESUMED: takes requests again")
            told.append((keeper.ready, keeper.paused))
            assert len(lines.returned) == before + 1
        return bool(told)

    lines = asyncio.run(keep(tmp_path, until=until))
    assert told == [(False, True), (True, False)], "it answers that it is well, and no frontend finds it"
    assert lines.of("is killed") == []
