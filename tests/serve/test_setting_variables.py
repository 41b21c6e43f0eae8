"""Variables of settings in the launcher's environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.serve.cli import app

pytestmark = pytest.mark.usefixtures("in_the_repository")


def dry_run(*words: str) -> str:
    result = typer.testing.CliRunner().invoke(app, ["serve", "graphs:disagg_wavepp", "--dry-run", *words])
    return result.output


def pools(output: str) -> set[str]:
    return set(
        re.findall(r"wavepp_worker\.dynamo\.(\w+ .*?--kv-tokens=\d+)", re.sub(r" --(?!kv-t)\S+", "", output))
    )


def test_a_variable_wins_over_a_file_and_the_command_line_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("Common: {kv_tokens: 16384}\nPrefillWorker: {kv_tokens: 16384}\n")
    assert pools(dry_run("-f", str(file))) == {"decode --kv-tokens=16384", "prefill --kv-tokens=16384"}
    monkeypatch.setenv("DYN_WAVEPP_KV_TOKENS", "20480")
    assert pools(dry_run("-f", str(file))) == {"decode --kv-tokens=20480", "prefill --kv-tokens=20480"}
    said = dry_run("-f", str(file), "--PrefillWorker.kv_tokens=24576")
    assert pools(said) == {"decode --kv-tokens=20480", "prefill --kv-tokens=24576"}
    monkeypatch.setenv("DYN_WAVEPP_PIPELINE_PARALLEL_SIZE", "3")
    said = dry_run("--Common.kv_tokens=24576")
    assert pools(said) == {"decode --kv-tokens=24576", "prefill --kv-tokens=24576"}
    assert said.count("--pp=3") == 2
    assert "--pp=2" not in said


def test_a_bad_value_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_WAVEPP_KV_TOKENS", "-5")
    assert dry_run() == "error: DYN_WAVEPP_KV_TOKENS: should be at least 1, not -5\n"
    monkeypatch.setenv("DYN_WAVEPP_KV_TOKENS", "")
    monkeypatch.setenv("DYN_WAVEPP_MODEL", "/nowhere")
    assert dry_run().startswith("error: DYN_WAVEPP_MODEL: /nowhere does not exist")
    monkeypatch.delenv("DYN_WAVEPP_MODEL")
    monkeypatch.setenv("DYN_WAVEPP_MODLE", "/nowhere")
    assert dry_run().startswith("error: DYN_WAVEPP_MODLE: unknown (did you mean DYN_WAVEPP_MODEL?)")


def test_a_variable_for_one_service_is_told_to_be_its_key() -> None:
    said = dry_run("--PrefillWorker.ServiceArgs.envs.DYN_WAVEPP_PP=3")
    assert said == (
        "error: --PrefillWorker.ServiceArgs.envs.DYN_WAVEPP_PP: is a setting of the service; give it as "
        "PrefillWorker.pp\n"
    )


def test_names_of_other_workers_are_keys_as_well(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "Common: {kv-block-size: 8}\nPrefillWorker: {pipeline-parallel-size: 3, tensor-parallel-size: 2}\n"
    )
    assert dry_run("-f", str(file)).startswith(
        f"error: PrefillWorker.tensor-parallel-size ({file}, line 2): should be 1, not 2: a rank computes"
    )
    said = dry_run(
        "-f", str(file), "--PrefillWorker.tensor_parallel_size=1", "--DecodeWorker.max-batch-size=3"
    )
    assert said.count("--block-size=8") == 3
    assert said.count("--pp=3") == 2
    assert said.count("--max-num-seqs=3") == 1


def test_memory_for_kv_may_be_given_to_all_as_a_fraction() -> None:
    said = dry_run("--Common.gpu_memory_utilization=0.05")
    assert said.count("--kv-memory-fraction=0.05") == 3
    assert dry_run("--Common.kv_memory_fraction=0.05", "--PrefillWorker.kv_tokens=8192") == (
        "error: --PrefillWorker.kv_tokens and --Common.kv_memory_fraction both say how large the KV pool is; give one "
        "of them\n"
    )


def test_a_variable_may_do_nothing_in_some_services_and_a_key_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"INTAKE_SILENCE": "5", "BOOTSTRAP_PORT": "19330", "MAX_LOCAL_PREFILL_LENGTH": "7"}
    for name, value in given.items():
        monkeypatch.setenv(f"DYN_WAVEPP_{name}", value)
    said = dry_run()
    assert said.count("--intake-silence=5") == 2
    assert ("--bootstrap-port=19330" in said, "--bootstrap-port=19331" in said) == (True, True)
    for name in given:
        monkeypatch.delenv(f"DYN_WAVEPP_{name}")
    assert dry_run("--PrefillWorker.intake_silence=5") == (
        "error: --PrefillWorker.intake_silence: is of workers that take jobs from a queue; set PrefillWorker.intake to "
        "nats or nats-alone, or leave it out\n"
    )
    assert dry_run("--DecodeWorker.bootstrap_port=19330").startswith(
        "error: --DecodeWorker.bootstrap_port: is where workers that prefill hand KV over"
    )
