from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.serve import guard
from wavepp_worker.serve.run_state import read_state, run_dirs, says_enough

from tests.support.run_states import write_state


@pytest.mark.parametrize(
    "text", [None, "", "[1]", '{"graph": "g"}', '{"processes": 5}', '{"processes": ' + "[" * 100_000]
)
def test_what_no_launcher_wrote_is_no_state(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "state.json").write_text(text)
    assert read_state(tmp_path) is None


def test_a_launchers_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"processes": [], "queue": {}, "n\\u001b": [["a\\u0007", 1]]}')
    assert read_state(tmp_path) == {"processes": [], "queue": {}, "n?": [["a?", 1]]}


def test_what_commands_need_is_there_or_the_launcher_is_of_another_version(tmp_path: Path) -> None:
    write_state(tmp_path, [{"service": "S", "url": None}])
    state = read_state(tmp_path)
    assert state is not None
    assert says_enough(state)
    for name in ("pid", "ready", "processes"):
        assert not says_enough({key: value for key, value in state.items() if key != name})
    assert not says_enough({**state, "processes": [5]})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another user's process")
def test_root_is_sent_nowhere_by_another_users_process(tmp_path: Path) -> None:
    """By its environment, it could have root ask whom it likes for what it likes."""
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    program = ["/bin/sleep", "60"]
    with contextlib.ExitStack() as stack:
        for directory, user in ((theirs, 65534), (own, None)):
            environment = {**os.environ, guard.MARK: str(directory)}
            process = stack.enter_context(subprocess.Popen(program, env=environment, user=user, cwd="/"))
            stack.callback(process.kill)
        found = run_dirs()
        assert own in found
        assert theirs not in found


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.json")
    assert read_state(tmp_path) is None


@pytest.mark.parametrize(
    "changed",
    [{"notes": 5}, {"planner": {"decision": 1}}, {"processes": [{"about": {"engines": 5}}]}, {"graph": None}],
)
def test_what_could_not_be_shown_is_of_another_version(tmp_path: Path, changed: dict[str, Any]) -> None:
    write_state(tmp_path, [{"service": "S", "url": None}])
    state = read_state(tmp_path)
    assert state is not None
    if "processes" in changed:
        changed = {"processes": [{**state["processes"][0], **changed["processes"][0]}]}
    assert not says_enough({**state, **changed})


def test_what_nests_too_deeply_is_no_state(tmp_path: Path) -> None:
    depth = 100_000
    (tmp_path / "state.json").write_text('{"processes": [' + "[" * depth + "]" * depth + "]}")
    assert read_state(tmp_path) is None
    # What can be read may still be too deep to be gone through: neither raises.
    for depth in (300, 400, 600, 900):
        (tmp_path / "state.json").write_text('{"processes": [' + "[" * depth + "]" * depth + "]}")
        read_state(tmp_path)
