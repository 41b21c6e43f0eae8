from __future__ import annotations

from pathlib import Path

import pytest
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


def test_a_workers_base_model_goes_before_its_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frontends that lose the last prefill worker with an adapter first end all prefill of the base model."""
    base = "dynamo%2Fprefill%2Fgenerate%2F2a"
    for name in (f"{base}%2Fzeal", base, f"{base}%2Fart"):
        (tmp_path / name).write_text('{"instance_id":42,"slug":"a"}')
    gone: list[str] = []
    unlink = Path.unlink

    def told(path: Path) -> None:
        gone.append(path.name)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", told)
    assert remove_entries(tmp_path, "2a") == 3
    assert gone[0] == base
