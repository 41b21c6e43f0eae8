"""What a pipeline cannot run is known without a tensor library in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.architecture_check import check_architecture
from wavepp_worker.model.model_info import read_model_info

from tests.support.graph_process import REPOSITORY
from tests.support.model_files import edit_json

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_it_is_refused_in_the_words_of_who_loads_it(copy: Path) -> None:
    edit_json(copy / "config.json", model_type="mamba")
    with pytest.raises(ConfigError) as loading:
        read_model_info(copy)
    for _ in range(2):
        with pytest.raises(ConfigError) as refused:
            check_architecture(copy)
        assert str(refused.value) == str(loading.value)


def test_that_it_is_fine_is_remembered_until_it_changes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_architecture(copy)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("looked again"))
        check_architecture(copy)
    edit_json(copy / "config.json", model_type="bert")
    with pytest.raises(ConfigError, match="bert is not supported"):
        check_architecture(copy)


def test_who_cannot_look_refuses_nothing(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    check_architecture(copy)
    assert not (tmp_path / "cache").exists()


def test_a_timed_model_has_no_architecture() -> None:
    check_architecture(REPOSITORY / "bench/models/glm-5.2-pp4")
