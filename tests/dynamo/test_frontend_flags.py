"""Flags of Dynamo's frontend, in front of which ours has a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.dynamo.frontend_flags import REFUSED, frontend_flags, parse_frontend_flags
from wavepp_worker.errors import ConfigError
from wavepp_worker.setting_names import flag_of


def test_predictions_without_kv_events_are_refused_before_anything_starts() -> None:
    """The graphs ask for predictions, so whoever switches events off has to be told what else to change."""
    without_events = ["--router-mode", "kv", "--no-router-kv-events"]
    parse_frontend_flags(without_events)
    with pytest.raises(ConfigError, match=r"router_predicted_ttl_secs=null"):
        parse_frontend_flags([*without_events, "--router-predicted-ttl-secs", "30"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--kserve-grpc-server",
            "--kserve-grpc-server (or DYN_KSERVE_GRPC_SERVER): should be false, not true: requests are taken over HTTP",
        ),
        (
            "--grpc-metrics-port 8789",
            "--grpc-metrics-port (or DYN_GRPC_METRICS_PORT): should be 8788, not 8789: requests are ",
        ),
        ("-i", "--interactive (or DYN_INTERACTIVE): should be false, not true: requests are taken over HTTP"),
        (
            "--migration-max-seq-len 5 --migration-limit 3",
            "--migration-max-seq-len (or DYN_MIGRATION_MAX_SEQ_LEN): a request that has got nothing of its answer ",
        ),
    ],
)
def test_what_the_proxy_would_not_obey_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_frontend_flags(words.split())
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--router-temperature=-1", "--router-temperature must be "),
        (
            "--router-kv-overlap-score-credit=nan",
            "--router-kv-overlap-score-credit must be a finite, non-negative number",
        ),
        ("--router-host-cache-hit-weight=2", "--router-host-cache-hit-weight must be between 0 and 1"),
        ("--router-policy-config=/no.yaml", "--router-policy-config: failed to read "),
        ("--router-event-threads=-1", "--router-event-threads: should be at least 1, not -1"),
        ("--router-event-threads=1000000", "--router-event-threads: should be at most "),
    ],
)
def test_what_the_router_would_refuse_is_refused_before_anything_starts(flag: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_frontend_flags(["--router-mode=kv", flag])
    assert str(caught.value).startswith(sentence)
    if "temperature" in flag:
        parse_frontend_flags(["--router-mode=random", flag])


def test_a_policy_of_the_router_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("a: [")
    with pytest.raises(ConfigError, match="--router-policy-config: ") as caught:
        parse_frontend_flags(["--router-mode=kv", f"--router-policy-config={policy}"])
    assert "\n" not in str(caught.value)


def test_a_variable_counts_as_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_KSERVE_GRPC_SERVER", "1")
    with pytest.raises(ConfigError, match="DYN_KSERVE_GRPC_SERVER"):
        parse_frontend_flags([])
    parse_frontend_flags(["--no-kserve-grpc-server"])


@pytest.mark.parametrize("flag", [flag_of(name) for name in REFUSED if flag_of(name) in frontend_flags()])
def test_what_is_so_anyway_is_taken(flag: str) -> None:
    for value in REFUSED[flag[2:].replace("-", "_")].taken:
        words = [f"--no-{flag[2:]}"] if value == "false" else [flag, value]
        parse_frontend_flags(words)


def test_no_clients_certificate_is_left_unchecked() -> None:
    """Dynamo 1.6 has the flag, 1.4 has not: either way it is not passed over."""
    with pytest.raises(ConfigError, match=r"^--tls-client-ca-cert-path"):
        parse_frontend_flags(["--tls-client-ca-cert-path", "/ca.pem"])


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_size_below_1_is_refused_before_anything_starts(size: int) -> None:
    with pytest.raises(ConfigError, match=f"^--kv-cache-block-size: should be at least 1, not {size};"):
        parse_frontend_flags([f"--kv-cache-block-size={size}"])
    assert parse_frontend_flags(["--kv-cache-block-size=1"]).kv_cache_block_size == 1
