"""What lies where no replica will look is said."""

from __future__ import annotations

from pathlib import Path

from wavepp_worker.serve import PREFILL_WORKER
from wavepp_worker.serve.unused_directories import unused_directories


def test_fewer_replicas_than_directories(tmp_path: Path) -> None:
    def said(replicas: int, value: str = str(tmp_path)) -> list[str]:
        return unused_directories(PREFILL_WORKER, {"disk_path": value, "pp": 2}, replicas)

    assert said(1) == said(2) == []
    for number in (10, 0, 1, 2):
        (tmp_path / f"replica-{number}").mkdir()
    (tmp_path / "replica-9").touch()
    (tmp_path / "replica-mine").mkdir()
    one, two = said(1), said(2)
    assert one[0].startswith(
        f"PrefillWorker.disk_path: nobody uses replica-0, replica-1, replica-2, replica-10 in {tmp_path}, as one "
        f"replica alone uses {tmp_path} itself; start as many replicas as there were, give one replica {tmp_path}/"
    )
    assert f"nobody uses replica-2, replica-10 in {tmp_path}, as 2 replicas use the others" in two[0]
    assert said(11) == []
    assert said(1, f"{tmp_path}/replica-{{replica}}") == []
    assert unused_directories(PREFILL_WORKER, {"disk_path": None}, 1) == []
