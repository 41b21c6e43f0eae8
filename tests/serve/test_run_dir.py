"""Which directory a run can have, said before it has one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.run_dir import RunDir, check_run_dir
from wavepp_worker.socket_directory import make_socket_directory


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a path short enough for a run."""
    with tempfile.TemporaryDirectory(prefix="wavepp-rd-", dir="/tmp") as path:
        yield Path(path)


def test_one_that_can_be_made_is_fine_and_not_made(short: Path) -> None:
    check_run_dir(short)
    check_run_dir(short / "a/b")
    assert not any(short.iterdir())


def test_what_cannot_be_is_refused(short: Path) -> None:
    (short / "file").touch()
    for path, why in (
        (Path("/tmp") / ("x" * 70), "is longer than 70 bytes"),
        (Path("/tmp") / ("ä" * 35), "is longer than 70 bytes"),
        (short / "file", "is a file; give a directory"),
        (short / "file/new", "cannot be made, as .*/file is no directory"),
        (short, "is not empty, and would be removed at the end"),
    ):
        with pytest.raises(ConfigError, match=rf"^--run-dir: .*{why}"):
            check_run_dir(path)
    (short / "state.json").write_text(json.dumps({"graph": "mine", "pid": os.getpid()}))
    told = (
        rf"is that of mine \(launcher {os.getpid()}\), which is running; "
        "stop that one first, or give another directory"
    )
    with pytest.raises(ConfigError, match=told):
        check_run_dir(short)
    (short / "state.json").write_text(json.dumps({"graph": "mine", "pid": 2**22 + 1}))
    with pytest.raises(ConfigError, match="is not empty"):
        check_run_dir(short)


def test_a_temporary_directory_too_long_for_sockets_is_named(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(short / ("l" * 40)))
    with pytest.raises(
        ConfigError, match=r"^TMPDIR: .*set TMPDIR to a shorter directory, such as /tmp, or give --run-dir"
    ):
        RunDir()


def test_one_that_a_run_cannot_make_itself_is_refused_before_it_has_to(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    check_run_dir(None)
    assert not any(short.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(short / ("l" * 40)))
    with pytest.raises(ConfigError, match=r"^TMPDIR: .* is longer than"):
        check_run_dir(None)

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(
        ConfigError, match=r"^TMPDIR: No usable temporary directory .*can be written to, or give"
    ):
        check_run_dir(None)


def test_in_the_longest_directory_of_a_run_a_process_finds_room_for_its_sockets(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir(short / ("r" * (69 - len(str(short)))))
    try:
        scratch = directory.scratch(32767)
        scratch.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        assert make_socket_directory().parent == scratch
    finally:
        directory.close()
