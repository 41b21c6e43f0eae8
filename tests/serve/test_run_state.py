from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.serve.run_state import read_state


@pytest.mark.parametrize("text", [None, "", "[1]", '{"graph": "g"}'])
def test_what_no_launcher_wrote_is_no_state(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    assert read_state(tmp_path) is None


def test_a_launchers_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"processes": [], "queue": {}}')
    assert read_state(tmp_path) == {"processes": [], "queue": {}}
