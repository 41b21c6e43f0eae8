from __future__ import annotations

import os
from pathlib import Path

import pytest
from wavepp_worker.model.files.user_cache import cache_root, keep, read_kept


def test_the_cache_is_the_users_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WAVEPP_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "wavepp"
    monkeypatch.setenv("WAVEPP_CACHE", "~/elsewhere")
    assert cache_root() == Path.home() / "elsewhere"


def test_what_is_kept_is_the_users_own_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "wavepp" / "kept"
    assert read_kept(file, 10) is None
    keep(file, b"one")
    keep(file, b"two")
    assert (read_kept(file, 10), read_kept(file, 2)) == (b"two", b"tw")
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert [*file.parent.iterdir()] == [file]
    file.chmod(0o622)
    assert read_kept(file, 10) is None, "others may have written it"


def test_what_is_in_its_place_is_neither_waited_for_nor_followed(tmp_path: Path) -> None:
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe, 0o600)
    folder.mkdir(0o700)
    keep(tmp_path / "own", b"x")
    link.symlink_to(tmp_path / "own")
    assert [read_kept(each, 10) for each in (link, folder)] == [None, None]
    assert not read_kept(pipe, 10)
    keep(folder, b"x")
    keep(tmp_path / "own" / "below", b"x")
    assert folder.is_dir(), "it cannot be kept, and nobody minds"
    assert {each.name for each in tmp_path.iterdir()} == {"pipe", "link", "folder", "own"}
