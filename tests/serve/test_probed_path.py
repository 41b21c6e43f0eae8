from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import Options, make_launch_plan
from wavepp_worker.serve.probed_path import HEALTH_VARIABLE, check_probed_path


def test_the_launcher_asks_workers_at_one_path() -> None:
    check_probed_path({HEALTH_VARIABLE: "/health", "DYN_SYSTEM_LIVE_PATH": "/livez"}, "x")
    check_probed_path({HEALTH_VARIABLE: ""}, "x")
    with pytest.raises(
        ConfigError, match=r"^x: '/h' is not where the launcher asks workers, which is /health; "
    ):
        check_probed_path({HEALTH_VARIABLE: "/h"}, "x")


def test_it_is_told_before_anything_starts_by_the_name_that_was_written(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: Path
) -> None:
    graph, common = resolve("graphs:agg_wavepp"), {"model": str(tiny_llama)}
    own = {"ServiceArgs": {"envs": {HEALTH_VARIABLE: "/healthz"}}}
    with pytest.raises(ConfigError, match=rf"^Worker\.ServiceArgs\.envs\.{HEALTH_VARIABLE}: '/healthz'"):
        make_launch_plan(graph, {"Common": common, "Worker": own}, Options())
    monkeypatch.setenv(HEALTH_VARIABLE, "/healthz")
    with pytest.raises(ConfigError, match=f"^{HEALTH_VARIABLE}: '/healthz'"):
        make_launch_plan(graph, {"Common": common}, Options())
    monkeypatch.delenv(HEALTH_VARIABLE)
    monkeypatch.setenv("DYN_HTTP_SVC_CMP_PATH", "/c")
    with pytest.raises(ConfigError, match="DYN_HTTP_SVC_CMP_PATH: '/c' is not followed"):
        make_launch_plan(graph, {"Common": common}, Options())
