from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.dump_path import check_dump_path
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.errors import ConfigError

SETTING = r"^--dump-config-to \(or DYN_DUMP_CONFIG_TO\): "


def test_a_file_is_what_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    for path in (tmp_path / "there.json", tmp_path / "new.json", tmp_path / "a" / "b" / "new.json"):
        check_dump_path(str(path))
    check_dump_path(None)
    assert [each.name for each in tmp_path.iterdir()] == ["there.json"]
    assert (tmp_path / "there.json").read_text() == "{}"


def test_what_cannot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"{SETTING}{tmp_path} is a directory; name a file in it$"):
        check_dump_path(str(tmp_path))
    for path in ("/proc/x.json", str(tmp_path / "there.json" / "x.json")):
        with pytest.raises(
            ConfigError, match=rf"{SETTING}{path} cannot be written \(.*\); name a file elsewhere$"
        ):
            check_dump_path(path)


def test_workers_and_frontends_look_before_they_start(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=SETTING):
        AggArgs.parse([f"--model={tiny_llama}", f"--dump-config-to={tmp_path}"])
    monkeypatch.setenv("DYN_DUMP_CONFIG_TO", str(tmp_path))
    with pytest.raises(ConfigError, match=SETTING):
        FrontendArgs.parse([])
