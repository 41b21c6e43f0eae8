"""What is known of an architecture is found out once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wavepp_worker.model.architecture_facts import architecture_facts, remembered

from tests.support.model_files import edit_json

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_what_is_known_of_an_architecture_is_found_out_once(copy: Path, tmp_path: Path) -> None:
    """Also what a file remembers that is damaged, or was of another configuration."""
    found = architecture_facts(copy)
    (file,) = (tmp_path / "cache" / "architectures").iterdir()
    assert remembered(copy) == found == architecture_facts(copy)
    code = (
        "import sys; from pathlib import Path; from wavepp_worker.model.model_info import read_model_info; "
        "print(read_model_info(Path(sys.argv[1])).num_layers, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(found.num_layers), "False", "False"]
    file.write_bytes(file.read_bytes()[:-20])
    assert remembered(copy) is None
    assert architecture_facts(copy) == found == remembered(copy)
    edit_json(copy / "config.json", num_hidden_layers=4)
    assert remembered(copy) is None
    assert architecture_facts(copy).num_layers == 4


def test_without_a_place_to_remember_it_is_found_out_each_time(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "file"))
    assert architecture_facts(copy).num_layers == 6
    assert remembered(copy) is None
