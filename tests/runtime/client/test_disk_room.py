"""Disk tiers that do not fit where they shall be are refused before anything is made."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wavepp_worker import EngineConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.runtime.client.disk_room import DiskUse, check_room, disk_use
from wavepp_worker.runtime.client.start_checks import check_start

from tests.support.kept_tensors import kept

SHAPE = ModelShape(6, 1024, "float32", has_chat_template=True, caches=(kept((1, 8)),) * 6)


def config(path: Path, **values: Any) -> EngineConfig:
    return EngineConfig(model=Path("/m"), disk_path=path, **{"disk_kv_tokens": 64, **values})


def test_all_ranks_layers_add_up_and_allocated_blocks_count_as_there(tmp_path: Path) -> None:
    def missing(**values: Any) -> int:
        use = disk_use(config(tmp_path, **values), SHAPE)
        assert use is not None
        return use.missing

    assert missing() == 64 * 6 * 8 * 4
    assert missing(pp=2, dtype="bfloat16") == 64 * 6 * 8 * 2
    assert missing(pp=2, partition=(2, 4), disk_kv_tokens=(32, 64)) == (32 * 2 + 64 * 4) * 8 * 4
    # Not known before layers are divided: no more than it can be.
    assert missing(pp=2, disk_kv_tokens=(0, 64)) == 64 * 8 * 4
    with (tmp_path / "rank1.blocks").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
    assert missing(pp=2) == 64 * 6 * 8 * 4 - 8192
    assert missing() == 64 * 6 * 8 * 4


def test_layers_with_windows_need_less_and_have_files_of_their_own(tmp_path: Path) -> None:
    caches = (kept((1, 8)), kept((1, 8), span=24)) * 3
    shape = ModelShape(6, 1024, "float32", has_chat_template=True, caches=caches)

    def missing(**values: Any) -> int:
        use = disk_use(config(tmp_path, **{"disk_kv_tokens": 640, **values}), shape)
        assert use is not None
        return use.missing

    windows = 640 // 4
    assert missing() == missing(partition=(6,)) == 3 * (640 + windows) * 8 * 4
    assert missing(pp=2, partition=(1, 5)) == (640 + 2 * 640 + 3 * windows) * 8 * 4
    assert missing(pp=2, disk_kv_tokens=(0, 640)) == windows * 8 * 4
    with (tmp_path / "rank0.last-24").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
    assert missing() == 3 * (640 + windows) * 8 * 4 - 8192


def test_replicas_of_one_file_system_have_to_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3 << 18, f_frsize=4096))
    uses = [DiskUse(tmp_path / f"made/later/replica-{replica}", 2 << 30) for replica in range(2)]
    check_room(uses[:1])
    with pytest.raises(
        ConfigError,
        match=r"^disk_path: .*replica-1 is on .* 3\.0 GiB free, .* asks for 4\.0 GiB more there, over all",
    ):
        check_room(uses)


def test_a_start_without_room_or_where_no_file_can_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^disk_path: .* GiB free, but disk_kv_tokens asks for .* GiB more"
    ):
        check_start(config(tmp_path / "made" / "later", disk_kv_tokens=10**15), SHAPE)
    assert not (tmp_path / "made").exists()
    with pytest.raises(ConfigError, match=r"^disk_path is /proc/x, but /proc is not a directory that can be"):
        check_start(config(Path("/proc/x")), SHAPE)
