"""A profile of all ranks: begun and ended at an operator's word, or by itself, and never twice at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from wavepp_worker.errors import EngineDead, InvalidRequest, RequestFailed, RequestTimeout
from wavepp_worker.runtime.client.profiler import Profiler
from wavepp_worker.runtime.protocol.commands import Command, StartProfile
from wavepp_worker.runtime.protocol.events import ProfileChanged
from wavepp_worker.runtime.trace.recorder import Recorder

from tests.support.waiting import wait_until


class Ranks:
    """Stands in for the replies of two ranks that record; ``hung`` ones say nothing, ``full`` ones cannot."""

    def __init__(self) -> None:
        self.recorders = [Recorder(), Recorder()]
        self.hung: set[int] = set()
        self.full: set[int] = set()
        self.dead = False

    def gather(self, question: Callable[[int], Command], seconds: float) -> list[ProfileChanged]:
        if self.dead:
            raise EngineDead("rank 0 is gone")
        command, replies = question(5), []
        for rank, recorder in enumerate(self.recorders):
            if rank in self.full:
                replies.append(ProfileChanged(profile_id=5, rank=rank, error="no space left"))
                continue
            if isinstance(command, StartProfile):
                recorder.start(Path(command.directory) / str(rank), command.seconds)
                recorder.timeline.record("loop", f"of {rank}", 1000, 2000)
            else:
                recorder.stop()
            if rank not in self.hung:
                replies.append(ProfileChanged(profile_id=5, rank=rank))
        return replies

    def gather_all(self, question: Callable[[int], Command], seconds: float) -> list[ProfileChanged]:
        replies = self.gather(question, seconds)
        if len(replies) < 2:
            raise RequestTimeout("ranks [1] of 2 did not reply")
        return replies


def made(*, always_on: bool = False) -> tuple[Profiler, Ranks]:
    ranks = Ranks()
    return Profiler(2, ranks, always_on=always_on), ranks  # type: ignore[arg-type]


def test_a_profile_has_all_ranks_and_its_file_is_its_owners(tmp_path: Path) -> None:
    profiler, ranks = made()
    path = profiler.start(tmp_path / "p.json", 60)
    assert path == tmp_path / "p.json"
    with pytest.raises(InvalidRequest, match=r"a profile is under way, to .*p\.json; stop it first"):
        profiler.start(None, 60)
    ranks.hung.add(1)
    assert profiler.stop() == {"path": str(path), "slices": 2, "silent_ranks": [1]}
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    assert {"of 0", "of 1"} <= names
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidRequest, match="no profile is under way; start one first"):
        profiler.stop()


def test_a_profile_ends_by_itself_and_another_may_follow() -> None:
    profiler, _ = made()
    path = profiler.start(None, 0.05)
    wait_until(lambda: path.read_bytes().endswith(b"]}\n"))
    other = profiler.start(None, 60)
    assert other != path
    profiler.stop()
    for each in (path, other):
        each.unlink()


def test_a_file_that_is_there_is_not_written_over_and_what_cannot_be_done_leaves_none(tmp_path: Path) -> None:
    profiler, ranks = made()
    there = tmp_path / "there"
    there.write_text("mine")
    for path, sentence in (
        (there, "cannot be made: File exists"),
        (tmp_path / "no" / "p", "cannot be made: No such file or directory"),
        (Path("p.json"), "path='p.json' should be absolute"),
        (tmp_path / "p\0", "cannot be made: embedded null byte"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            profiler.start(path, 1)
    ranks.full.add(1)
    with pytest.raises(RequestFailed, match="rank 1: no space left"):
        profiler.start(tmp_path / "p", 60)
    assert not (tmp_path / "p").exists()
    ranks.full.clear()
    # Nor does the rank that could go on with it.
    profiler.start(tmp_path / "p", 60)
    ranks.dead = True
    with pytest.raises(EngineDead, match="rank 0 is gone"):
        profiler.stop()
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
    assert there.read_text() == "mine"


def test_an_engine_that_is_closed_meanwhile_leaves_no_file_and_begins_none(tmp_path: Path) -> None:
    profiler, _ = made()
    profiler.start(tmp_path / "p", 60)
    profiler.close()
    with pytest.raises(EngineDead, match="the engine was closed"):
        profiler.start(tmp_path / "q", 60)
    assert not any(tmp_path.iterdir())


def test_ranks_that_record_all_the_time_are_left_alone() -> None:
    profiler, _ = made(always_on=True)
    with pytest.raises(InvalidRequest, match="record all the time, as timeline is set"):
        profiler.start(None, 1)
