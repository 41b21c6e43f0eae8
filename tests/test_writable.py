from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.writable import check_writable, existing


def test_a_directory_that_is_there_or_can_be_made_takes_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "a" / "b"):
        check_writable(path)
        assert existing(path) == tmp_path
    assert not list(tmp_path.iterdir())


def test_neither_a_file_nor_a_directory_of_the_system_does(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "b", Path("/proc/x")):
        with pytest.raises(OSError, match="tory"):
            check_writable(path)
