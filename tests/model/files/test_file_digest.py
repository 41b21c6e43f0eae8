"""Every byte counts, and what was read once is not read again unless it may have changed."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files import file_digest
from wavepp_worker.model.files.file_digest import file_digests

SIZE = 10_000


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A cache of its own, for files of a few pieces; returns where files are read."""
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digest, "PIECE_BYTES", 1024)
    monkeypatch.setattr(file_digest, "REMEMBERED_BYTES", 4000)
    read, starts = os.preadv, []

    def counted(descriptor: int, buffers: list[memoryview], start: int) -> int:
        starts.append(start)
        return read(descriptor, buffers, start)

    monkeypatch.setattr(os, "preadv", counted)
    return starts


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Last written to a minute ago."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE))
    return settled(path)


def settled(path: Path) -> Path:
    os.utime(path, (time.time() - 60,) * 2)
    return path


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written now counts as settled: the time of a change of the inode cannot be set."""
    monkeypatch.setattr(file_digest, "SETTLED_NS", -(10**12))


def test_every_byte_counts(reads: list[int], weights: Path) -> None:
    content = weights.read_bytes()
    (digest,) = file_digests([weights])
    seen = {digest}
    for at in (0, 1023, 1024, 5000, SIZE - 1):
        weights.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        seen |= set(file_digests([weights]))
    for other in (content[:-1], content + b"\0", content[:1024], content[1024:] + content[:1024], b""):
        weights.write_bytes(other)
        seen |= set(file_digests([weights]))
    assert len(seen) == 11
    assert all(len(bytes.fromhex(each)) == 32 for each in seen)
    weights.write_bytes(content)
    assert file_digests([weights]) == [digest]


@pytest.mark.usefixtures("long_ago")
def test_a_second_start_reads_nothing(reads: list[int], weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"?" * SIZE)
    first = file_digests([weights, other])
    assert len(reads) == 20
    reads.clear()
    assert file_digests([weights, other]) == first
    assert reads == []
    folder = tmp_path / "cache" / "digests"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.usefixtures("long_ago")
@pytest.mark.parametrize("how", ["in place", "in place, with its time", "another file"])
def test_what_may_have_changed_is_read_again(reads: list[int], weights: Path, how: str) -> None:
    """Also where somebody sets the time of the last change back, as many tools for copying do."""
    before, status = file_digests([weights]), weights.stat()
    content = bytearray(weights.read_bytes())
    content[7777] ^= 1
    if how == "another file":
        weights.with_name("new").write_bytes(content)
        os.replace(weights.with_name("new"), weights)
    else:
        with weights.open("r+b") as file:
            file.write(content)
    if how != "in place":
        os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_digests([weights]) != before


def test_what_was_just_written_is_not_remembered(reads: list[int], weights: Path) -> None:
    """A write within the same tick of the file system's clock would not be noticed."""
    file_digests([weights])
    reads.clear()
    file_digests([weights])
    assert reads


@pytest.mark.usefixtures("long_ago")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", bytes(100), "digest", "others"])
def test_a_damaged_or_foreign_memory_is_not_believed(
    reads: list[int], weights: Path, tmp_path: Path, damage: bytes | str
) -> None:
    digest = file_digests([weights])
    (entry,) = (tmp_path / "cache" / "digests").glob("*.json")
    if damage == "digest":
        entry.write_bytes(entry.read_bytes().replace(digest[0].encode(), b"00"))
    elif damage == "others":
        entry.chmod(0o666)
    else:
        assert isinstance(damage, bytes)
        entry.write_bytes(damage)
    reads.clear()
    assert file_digests([weights]) == digest
    assert reads
    reads.clear()
    assert file_digests([weights]) == digest
    assert reads == []


def test_without_a_place_to_remember_it_works_as_well(
    reads: list[int], weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "file"))
    assert file_digests([weights]) == file_digests([weights])


@pytest.mark.usefixtures("long_ago")
def test_who_starts_together_reads_once(reads: list[int], weights: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(file_digests([weights]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1
    assert len(found) == 4
    assert len(reads) == 10


def test_a_file_that_changes_while_it_is_read_is_refused(
    reads: list[int], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = os.preadv

    def grows(descriptor: int, buffers: list[memoryview], start: int) -> int:
        with weights.open("ab") as file:
            file.write(b"more")
        return counted(descriptor, buffers, start)

    monkeypatch.setattr(os, "preadv", grows)
    with pytest.raises(ConfigError, match=r"^model: .*weights changes while it is read"):
        file_digests([weights])


def test_a_file_that_cannot_be_read_is_named(
    reads: list[int], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(ConfigError, match=r"^model: .*weights cannot be read \(Input/output error\)"):
        file_digests([weights])


def test_progress_of_large_files_is_shown(
    reads: list[int], weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(file_digest, "SHOWN_BYTES", SIZE)
    file_digests([weights])
    assert "Identifying the weights (once)" in capsys.readouterr().err


def test_a_pipe_in_place_of_what_is_remembered_is_not_waited_for(reads: list[int], weights: Path) -> None:
    """A directory that several users share is no reason to hang at the start."""
    (digest,) = file_digests([weights])
    entry = file_digest._entry_file(weights)
    entry.unlink(missing_ok=True)
    entry.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(entry)
    done = threading.Event()

    def rescue() -> None:
        """Let go of one who waits."""
        while not done.wait(2.0):
            os.close(os.open(entry, os.O_RDWR))

    thread = threading.Thread(target=rescue)
    thread.start()
    began = time.monotonic()
    try:
        assert file_digests([weights]) == [digest]
    finally:
        done.set()
        thread.join()
    assert time.monotonic() - began < 1.5
