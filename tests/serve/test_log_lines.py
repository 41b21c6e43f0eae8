from __future__ import annotations

import pytest
from wavepp_worker.serve.log_lines import PROBE, is_probe, is_small_talk

TIME = "2026-11-22T10:31:07.366627Z"


@pytest.mark.parametrize(
    "line",
    [
        f"{TIME}  INFO dynamo_llm::model_card: wrapping tokenizer in L1 prefix cache",
        f"{TIME}  INFO main.async_main: Request migration disabled (limit: 0)",
        f"{TIME}  WARN mm_routing: tiny is not supported for MM-aware KV routing",
        f"{TIME} ERROR dynamo_runtime::storage::kv::file: Failed to send file watch event error=channel closed",
        f"{TIME} ERROR http-request:completions: dynamo_llm::http::service::metrics: request completed",
        "2026-11-22 10:31:35 NIXL INFO    _api.py:405 Backend UCX was instantiated",
        '{"time":"2026","level":"INFO","target":"log","message":"hello"}',
        '{"time":"2026","level":"ERROR","target":"dynamo_runtime::storage::kv","message":"closed"}',
    ],
)
def test_what_says_nothing_to_the_user_of_a_process_that_comes_up_or_leaves(line: str) -> None:
    assert is_small_talk(line)


@pytest.mark.parametrize(
    "line",
    [
        f"{TIME}  WARN stop_order.wait: some requests fail: the dynamo_worker was told to stop",
        f"{TIME} ERROR worker.start: KV of 5 GiB does not fit",
        "2026-11-22 10:31:35 NIXL ERROR   _api.py:405 no backend",
        "LEAVING: told to stop; nothing to wait for",
        "FATAL: the engine died: rank 1 was ended by SIGKILL",
        "Traceback (most recent call last):",
        "error: --model: there is no directory /gone",
        '{"time":"2026","level":"WARN","target":"log","message":"some requests fail"}',
        "{is no JSON",
        '{"nests":' + 10_000 * "[",
        "",
    ],
)
def test_what_its_user_has_to_know(line: str) -> None:
    assert not is_small_talk(line)


def test_only_lines_of_this_launchers_own_requests_are_its_probes() -> None:
    line = f"{TIME}  INFO dynamo_llm::http::service::service_v2: http response sent request_id="
    assert is_probe(f"{line}{PROBE}0123456789ab")
    assert not is_probe(f"{line}82c588c3-fdd2-45e1-a2f5-827be7f19953")


ANSWER = "INFO dynamo_llm::http::service::service_v2: http response sent status=200 latency_ms=0"
OBJECT = '{"level":"INFO","target":"dynamo_llm::http","message":"http response sent","status":"200"'


COLOURED = (
    "\x1b[2m2026-11-22T10:31:07.366627+09:00\x1b[0m \x1b[32m INFO\x1b[0m \x1b[2mdynamo_llm::http::service::service_v2"
    "\x1b[0m\x1b[2m:\x1b[0m http response sent \x1b[3mstatus\x1b[0m\x1b[2m=\x1b[0m200 \x1b[3mlatency_ms\x1b[0m"
    "\x1b[2m=\x1b[0m0"
)
"""As Dynamo 1.4.2 writes it with ``DYN_SDK_DISABLE_ANSI_LOGGING=0`` and ``DYN_LOG_USE_LOCAL_TZ=1``."""


def test_colours_and_time_zones_change_nothing_of_what_is_shown() -> None:
    assert is_probe(COLOURED)
    assert is_small_talk(COLOURED)
    assert not is_small_talk(COLOURED.replace(" INFO", "ERROR").replace("dynamo_llm::", "worker.start::"))


@pytest.mark.parametrize("line", [f"{TIME}  {ANSWER}", f"{OBJECT}}}"])
def test_a_frontends_answer_without_a_name_is_to_who_looks_whether_it_lives(line: str) -> None:
    assert is_probe(line)


@pytest.mark.parametrize(
    "line",
    [
        f"{TIME}  {ANSWER} method=POST uri=/v1/completions",
        f"{TIME} {ANSWER.replace('INFO', 'ERROR').replace('200', '503')}",
        f"{TIME}  INFO worker.start: http response sent status=200 latency_ms=0",
        f'{OBJECT},"uri":"/v1/completions"}}',
        OBJECT.replace("INFO", "ERROR").replace("200", "503") + "}",
        OBJECT,
    ],
)
def test_other_answers_are_told_of(line: str) -> None:
    assert not is_probe(line)
