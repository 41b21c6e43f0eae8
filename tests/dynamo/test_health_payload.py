from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.dynamo.agg import AggArgs
from wavepp_worker.dynamo.health_payload import check_health_payload
from wavepp_worker.errors import ConfigError

SETTING = r"^--health-check-payload \(or DYN_HEALTH_CHECK_PAYLOAD\): "
GOOD = '{"token_ids": [1], "stop_conditions": {"max_tokens": 1}}'


@pytest.mark.parametrize("value", ["nojson", "[1]", "5", "@/nowhere/x.json", "[" * 100_000])
def test_what_dynamo_would_pass_over_is_refused(value: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{SETTING}'.* is no object of JSON, nor @ and a file that has one; "
    ):
        check_health_payload(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{}", "the prompt is empty; give at least one token"),
        ('{"prompt": "hello"}', "the prompt is empty; give at least one token"),
        (
            '{"token_ids": [1], "stop_conditions": {"max_tokens": 0}}',
            "max_tokens=0 leaves nothing to generate",
        ),
    ],
)
def test_so_is_what_no_worker_would_answer(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"{SETTING}no worker would answer it: {said}"):
        check_health_payload(value)


def test_a_request_is_taken_and_none_leaves_the_workers_own(tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text(GOOD)
    for value in (GOOD, f"@{tmp_path / 'payload.json'}", "", None):
        check_health_payload(value)
    (tmp_path / "payload.json").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is no object of JSON"):
        check_health_payload(f"@{tmp_path / 'payload.json'}")


def test_a_worker_looks_before_it_starts(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=SETTING):
        AggArgs.parse([f"--model={tiny_llama}", "--health-check-payload={}"])
    monkeypatch.setenv("DYN_HEALTH_CHECK_PAYLOAD", "nojson")
    with pytest.raises(ConfigError, match=SETTING):
        AggArgs.parse([f"--model={tiny_llama}"])
