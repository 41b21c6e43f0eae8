"""Standard output that nobody reads for a while."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from wavepp_worker.serve import output_thread
from wavepp_worker.serve.output_thread import OutputThread

from tests.support.waiting import wait_until

LINE = "x" * 999 + "\n"
LINES = 300
"""More than a pipe holds."""


class Pipe:
    """Stands in for ``sys.stdout``."""

    encoding = "ascii"

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def fileno(self) -> int:
        return self.writing

    def read(self) -> str:
        """Until nobody can write any more."""
        with os.fdopen(self.reading, "r") as file:
            return file.read()


def piped(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """Not a fixture, as pytest puts its own output in place between those and the test."""
    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", pipe)
    return pipe


def test_everything_is_written_in_order_though_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = piped(monkeypatch)
    output = OutputThread()
    for number in range(LINES):
        output.write(f"{number} {LINE}")
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(pipe.read)
        output.close()
        os.close(pipe.writing)
        lines = reading.result().splitlines()
    assert [int(line.partition(" ")[0]) for line in lines] == list(range(LINES))


def test_what_finds_no_room_is_dropped_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = piped(monkeypatch)
    monkeypatch.setattr(output_thread, "MOST_WAITING", 20 * len(LINE))
    output = OutputThread()
    for number in range(LINES):
        output.write(f"{number} {LINE}")
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(pipe.read)
        wait_until(lambda: not output._waiting)
        output.write("seen again\n")
        output.close()
        os.close(pipe.writing)
        *lines, last = reading.result().splitlines()
    accounted = dropped = 0
    for line in lines:
        if told := re.fullmatch(r"\[(\d+) lines are missing here, as nobody read them\]", line):
            accounted += int(told[1])
            dropped += int(told[1])
        else:
            assert int(line.partition(" ")[0]) == accounted
            accounted += 1
    assert 0 < dropped < LINES == accounted
    assert last == "seen again"


def test_the_end_waits_for_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = piped(monkeypatch)
    monkeypatch.setattr(output_thread, "MOST_WAITING", 20 * len(LINE))
    monkeypatch.setattr(output_thread, "CLOSE_SECONDS", 0.1)
    output = OutputThread()
    for _ in range(LINES):
        output.write(LINE)
    output.close()
    os.close(pipe.reading)
    output._thread.join(10)
    os.close(pipe.writing)


def test_a_full_disk_loses_lines_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        output = OutputThread()
        output.write("one\n")
        output.write("two\n")
        output.close()
        assert not output._thread.is_alive()
