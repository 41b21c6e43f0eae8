from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.dynamo.http_paths import check_frontend_paths, check_worker_paths
from wavepp_worker.errors import ConfigError

HEALTH, LIVE = "DYN_SYSTEM_HEALTH_PATH", "DYN_SYSTEM_LIVE_PATH"


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("DYN_HTTP_SVC_CHAT_PATH", "/v1/chat/completions"),
        ("DYN_HTTP_SVC_CMP_PATH", "/v1/completions"),
        ("DYN_HTTP_SVC_RESPONSES_PATH", "/v1/responses"),
        ("DYN_HTTP_SVC_MODELS_PATH", "/v1/models"),
        ("DYN_HTTP_SVC_HEALTH_PATH", "/health"),
        ("DYN_HTTP_SVC_LIVE_PATH", "/live"),
        ("DYN_HTTP_SVC_METRICS_PATH", "/metrics"),
    ],
)
def test_a_path_that_the_proxy_knows_stays_where_it_is(name: str, usual: str) -> None:
    check_frontend_paths({name: usual})
    for value in ("/elsewhere", ""):
        with pytest.raises(
            ConfigError, match=f"^{name}: {value!r} is not followed .* at {usual}; leave it out"
        ):
            check_frontend_paths({name: value})


def test_other_paths_of_a_frontend_are_dynamos_where_it_could_serve_them() -> None:
    check_frontend_paths({"DYN_HTTP_SVC_EMB_PATH": "/e", "DYN_HTTP_SVC_CMP_PATH_ENV": "x", "PATH": "x"})
    for value, sentence in (
        ("e", "'e' is no path"),
        ("", "'' is no path"),
        ("/live", "/live is the path that"),
    ):
        with pytest.raises(ConfigError, match=f"^DYN_HTTP_SVC_EMB_PATH: {sentence}"):
            check_frontend_paths({"DYN_HTTP_SVC_EMB_PATH": value})


def test_a_worker_alone_answers_for_its_health_where_it_is_told_to() -> None:
    check_worker_paths({HEALTH: "/healthz", LIVE: "/health"})
    check_worker_paths({HEALTH: "", LIVE: "/live"})
    with pytest.raises(ConfigError, match=f"^{LIVE}: 'livez' is no path"):
        check_worker_paths({LIVE: "livez"})
    with pytest.raises(ConfigError, match=f"^{HEALTH} and {LIVE} are both /live; give two paths$"):
        check_worker_paths({HEALTH: "/live"})


@pytest.mark.parametrize("name", ["DYN_HTTP_SVC_CHAT_PATH", HEALTH])
def test_each_looks_before_it_starts(name: str, monkeypatch: pytest.MonkeyPatch, tiny_llama: object) -> None:
    monkeypatch.setenv(name, "nowhere")
    worker: Callable[[], object] = lambda: AggArgs.parse([f"--model={tiny_llama}"])  # noqa: E731
    frontend: Callable[[], object] = lambda: FrontendArgs.parse([])  # noqa: E731
    looks: Mapping[Callable[[], object], bool] = {worker: name == HEALTH, frontend: name != HEALTH}
    for parse, refuses in looks.items():
        if refuses:
            with pytest.raises(ConfigError, match=f"^{name}: 'nowhere'"):
                parse()
        else:
            parse()
