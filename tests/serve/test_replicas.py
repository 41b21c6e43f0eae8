"""Processes beside those of the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve.graph import resolve
from wavepp_worker.serve.launch_plan import LaunchPlan, Options, make_launch_plan

pytestmark = pytest.mark.usefixtures("in_the_repository", "etcd")


def plan(config: dict[str, object]) -> LaunchPlan:
    return make_launch_plan(resolve("graphs:disagg_wavepp"), config, Options(dynamo_planner=True))


def test_open_words_of_command_lines_are_filled_in_later_replicas_too(tmp_path: Path) -> None:
    made = plan({}).with_model(tmp_path)
    assert f"--model={tmp_path}" in made.further("prefill", 2).argv
    made.held.close()


def test_a_further_replica_has_ports_and_directories_of_its_own_and_keeps_them() -> None:
    made = plan({"PrefillWorker": {"disk_path": "kv", "disk_kv_tokens": 4096, "ServiceArgs": {"workers": 1}}})
    (first,) = [each.argv for each in made.processes if each.label == "PrefillWorker:0"]
    assert "--disk-path=kv/replica-0" in first
    second = made.further("prefill", 1)
    assert "--disk-path=kv/replica-1" in second.argv
    assert second.port not in [process.port for process in made.processes]
    made.replicas["prefill"].release(1)
    assert made.further("prefill", 1) == second
    made.held.close()


def test_a_further_replica_has_gpus_that_others_gave_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    made = plan(
        {
            name: {"ServiceArgs": {"workers": 1, "resources": {"gpu": 1}}}
            for name in ("PrefillWorker", "DecodeWorker")
        }
    )
    assert made.further("prefill", 1).env["CUDA_VISIBLE_DEVICES"] == "6"
    with pytest.raises(
        ConfigError, match=r"^DecodeWorker\.ServiceArgs\.resources\.gpu: 1 more GPUs .* 0 are left"
    ):
        made.further("decode", 1)
    made.replicas["prefill"].release(1)
    assert made.further("decode", 1).env["CUDA_VISIBLE_DEVICES"] == "6"
    made.held.close()


def test_workers_of_ours_are_known_to_say_what_they_are() -> None:
    made = plan({})
    assert {process.service: process.describes for process in made.processes} == {
        "Frontend": False,
        "PrefillWorker": True,
        "DecodeWorker": True,
    }
    made.held.close()
