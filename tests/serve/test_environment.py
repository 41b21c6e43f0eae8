"""What processes find in their environment."""

from __future__ import annotations

import subprocess
import sys

import pytest
from wavepp_worker.liveness.stop_times import FRONTEND_VARIABLE, GRACE_VARIABLE, WORKER_VARIABLE
from wavepp_worker.serve.environment import CANARY, LOG_VARIABLE, LOOPBACK, PROBES, QUIET, base_environment

from tests.support.graph_process import REPOSITORY

CODE = """
import resource
from wavepp_worker.serve.environment import allow_descriptors

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_descriptors()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
"""


def test_what_is_started_may_open_as_many_files_as_the_user_may() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


def test_what_a_log_asks_for_never_has_health_checks_nor_secrets_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_LOG", "trace,dynamo_runtime=debug")
    asked = base_environment()["DYN_LOG"].split(",")
    # Of two directives for one target, the last counts.
    assert asked[-2:] == ["trace", "dynamo_runtime=debug"]
    assert {"dynamo_runtime::health_check=warn", "dynamo_backend_common::worker=warn"} < set(asked)


def test_without_a_wish_dynamos_own_level_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYN_LOG", raising=False)
    assert base_environment()["DYN_LOG"] == f"{PROBES},info"


def test_how_long_processes_have_to_stop_is_as_dynamo_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (GRACE_VARIABLE, WORKER_VARIABLE, FRONTEND_VARIABLE)
    for name in times:
        monkeypatch.delenv(name, raising=False)
    assert not base_environment().keys() & set(times)


def test_all_that_the_launcher_sets_is_documented_and_gives_way_to_what_the_user_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (REPOSITORY / "docs/operate.md").read_text()
    for name in (*LOOPBACK, *CANARY, *QUIET, LOG_VARIABLE):
        assert f"`{name}`" in page
        monkeypatch.setenv(name, "7")
        assert base_environment()[name].endswith("7")
    for name in (WORKER_VARIABLE, FRONTEND_VARIABLE):
        assert f"`{name}`" in page
