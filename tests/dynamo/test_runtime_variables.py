from __future__ import annotations

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.frontend import FrontendArgs
from wavepp_worker.dynamo.runtime_variables import check_runtime_variables
from wavepp_worker.errors import ConfigError


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "1e3", "1_0", "٣", str(2**64), "9" * 5000])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DYN_CANARY_WAIT_TIME", "a whole number of seconds"),
        ("DYN_HEALTH_CHECK_REQUEST_TIMEOUT", "a whole number of seconds"),
        ("DYN_RUNTIME_NUM_WORKER_THREADS", "a number of threads"),
        ("DYN_RUNTIME_MAX_BLOCKING_THREADS", "a number of threads"),
        ("DYN_COMPUTE_THREADS", "a number of threads"),
    ],
)
def test_what_is_no_count_is_refused(name: str, kind: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: should be {kind}, not "):
        check_runtime_variables({name: value})


@pytest.mark.parametrize("name", ["DYN_RUNTIME_NUM_WORKER_THREADS", "DYN_RUNTIME_MAX_BLOCKING_THREADS"])
def test_a_runtime_has_a_thread(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: should be at least 1, not '0'$"):
        check_runtime_variables({name: "0"})
    check_runtime_variables({name: "1", "DYN_COMPUTE_THREADS": "0"})


@pytest.mark.parametrize("name", ["DYN_HEALTH_CHECK_ENABLED", "DYN_SYSTEM_ENABLED"])
def test_what_is_no_switch_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: should be true or false, not 'maybe'$"):
        check_runtime_variables({name: "maybe"})


def test_a_first_state_of_health_is_one_that_there_is() -> None:
    name = "DYN_SYSTEM_STARTING_HEALTH_STATUS"
    with pytest.raises(ConfigError, match=f"^{name}: should be ready or notready, not 'Ready'$"):
        check_runtime_variables({name: "Ready"})
    check_runtime_variables({name: "notready"})


@pytest.mark.parametrize("value", ["", "0", " 30 ", "+5", "007", str(2**64 - 1)])
def test_what_the_runtime_takes_is_taken(value: str) -> None:
    check_runtime_variables({"DYN_CANARY_WAIT_TIME": value, "DYN_HEALTH_CHECK_ENABLED": "true"})


def test_workers_and_frontends_look_before_they_start(
    monkeypatch: pytest.MonkeyPatch, tiny_llama: object
) -> None:
    monkeypatch.setenv("DYN_CANARY_WAIT_TIME", "x")
    for parse in (
        lambda: AggArgs.parse([f"--model={tiny_llama}"]),
        lambda: FrontendArgs.parse([]),
    ):
        with pytest.raises(ConfigError, match="DYN_CANARY_WAIT_TIME"):
            parse()
