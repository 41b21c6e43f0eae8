from __future__ import annotations

from pathlib import Path

from wavepp_worker.serve.discovery_entries import remove_entries


def test_all_that_tells_of_one_worker_is_removed_and_nothing_else(tmp_path: Path) -> None:
    mine = {"v1/dynamo%2Fprefill%2F2a": "{}", "v1/events%2F77": '{"worker_id":42,"rank":0}'}
    others = {"v1/dynamo%2Fprefill%2Fb2a": "{}", "v1/events%2F78": '{"worker_id":421,"rank":42}'}
    (tmp_path / "v1").mkdir()
    for name, text in (mine | others).items():
        (tmp_path / name).write_text(text)
    assert remove_entries(tmp_path, "2a") == len(mine)
    assert not any((tmp_path / name).exists() for name in mine)
    assert all((tmp_path / name).exists() for name in others)
    assert remove_entries(tmp_path / "gone", "2a") == 0
