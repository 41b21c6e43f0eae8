from __future__ import annotations

import os
from pathlib import Path

import pytest
from wavepp_worker.dynamo.args import AggArgs, DecodeArgs, PrefillArgs
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_shape import check_served_model
from wavepp_worker.thread_check import MOST_PER_CPU, check_threads


def test_a_machine_has_as_many_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    check_threads(32)
    check_threads(1)
    with pytest.raises(ConfigError) as caught:
        check_threads(33, "--threads")
    assert str(caught.value) == "--threads: should be at most 32, 8 for each of this machine's 4 CPUs, not 33"
    with pytest.raises(ConfigError, match=r"^threads: should be at least 1, not -1$"):
        check_threads(-1)


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (PrefillArgs, "--threads"),
        (DecodeArgs, "--threads"),
        (AggArgs, "--threads"),
        (AggArgs, "--decode-threads"),
    ],
)
def test_no_worker_starts_with_more(
    kind: type[PrefillArgs | DecodeArgs | AggArgs], flag: str, tiny_llama: Path
) -> None:
    args = kind.parse([f"--model={tiny_llama}", f"{flag}=100000"])
    with pytest.raises(ConfigError, match=rf"^{flag}: should be at most \d+, {MOST_PER_CPU} for each of "):
        args.check(check_served_model(tiny_llama))
