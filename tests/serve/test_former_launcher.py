"""What users of Dynamo 0.3's launcher wrote: it works, or is told how it is written now (docs/from-dynamo-0.3.md)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.serve.cli import app
from wavepp_worker.serve.former_launcher import COMMANDS, OPTIONS

from tests.support.graph_process import REPOSITORY

pytestmark = pytest.mark.usefixtures("in_the_repository")

PAGE = (REPOSITORY / "docs/from-dynamo-0.3.md").read_text()


def run(*words: str) -> tuple[int, str]:
    result = typer.testing.CliRunner().invoke(app, [*words])
    return result.exit_code, result.output


def dry_run(*words: str) -> tuple[int, str]:
    return run("serve", *words, "--dry-run")


def refused(*words: str) -> str:
    code, said = dry_run(*words)
    assert code == 2, said
    assert said.count("\n") == 1, said
    return said.removeprefix("error: ")


@pytest.mark.parametrize(
    "target",
    ["graphs.disagg_wavepp:Frontend", "graphs/disagg_wavepp.py:Frontend", "graphs:disagg_wavepp.Frontend"],
)
def test_a_graph_may_be_called_after_its_first_service(target: str) -> None:
    code, said = dry_run(target)
    assert code == 0, said
    assert said.startswith("# disagg_wavepp: configuration")
    assert target in PAGE


def test_another_service_is_told_how_it_is_started_alone() -> None:
    said = refused("graphs.disagg_wavepp:PrefillWorker")
    assert said == (
        "graph graphs.disagg_wavepp:PrefillWorker: PrefillWorker is a service of a graph, which is started from "
        "Frontend; leave :PrefillWorker out, and give --service-name PrefillWorker to start it alone\n"
    )
    assert "holds no graph called 'Frontent'" in refused("graphs.disagg_wavepp:Frontent")


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_are_gone(option: str) -> None:
    for words in ([f"--{option}"], [f"--{option}=x"], [f"--{option}", "x"]):
        assert (
            refused("graphs:agg_wavepp", *words)
            == f"--{option}: is of Dynamo 0.3's launcher: {OPTIONS[option]}\n"
        )
    assert f"`--{option}`" in PAGE


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_are_gone(command: str) -> None:
    code, said = run(command, "--flag", "x")
    assert (code, said) == (2, f"error: {command}: is a command of Dynamo 0.3: {COMMANDS[command]}\n")
    assert f"`dynamo {command}`" in PAGE


def test_a_configuration_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_DEPLOYMENT_CONFIG", "{}")
    assert refused("graphs:agg_wavepp").startswith(
        "DYN_DEPLOYMENT_CONFIG: held the whole configuration of Dynamo 0.3's "
    )


def test_classes_are_told_how_they_are_written_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    then, now = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    file = tmp_path / "linked.py"
    file.write_text(f"import json\nfrom dynamo.sdk import depends, service\n{then}")
    assert refused(f"{file}:Frontend").startswith(
        f"graph {file}:Frontend: {file}, line 2 imports dynamo.sdk, which Dynamo has no longer since 0.4; write each "
    )
    file.write_text(now)
    code, said = dry_run(str(file))
    assert code == 0, said
    assert re.findall(r"^# (\w+:\d)$", said, re.M) == [
        "Frontend:0",
        "DecodeWorker:0",
        "PrefillWorker:0",
        "PrefillWorker:1",
    ]
    assert said.count("--pp=3") == 2


def test_a_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "Common: {block-size: 8, max-model-len: 4096}\n"
        "PrefillWorker:\n"
        "  common-configs: [block-size]\n"
        "  max-num-batched-tokens: 64\n"
        "  tensor-parallel-size: 1\n"
        "  ServiceArgs: {workers: 1, resources: {gpu: '0', cpu: '10', memory: 20Gi}, envs: {A: x}}\n"
    )
    code, said = dry_run(
        "graphs.disagg_wavepp:Frontend", "-f", str(file), "--PrefillWorker.ServiceArgs.envs.B=y"
    )
    assert code == 0, said
    [prefill] = [line for line in said.splitlines() if "wavepp_worker.dynamo.prefill" in line]
    assert "A=x B=y" in prefill
    assert "--block-size=8" in prefill
    assert "--max-model-len" not in prefill
    assert said.count("limit nothing") == 1
    assert (
        "# note: PrefillWorker.ServiceArgs.resources.cpu and PrefillWorker.ServiceArgs.resources.memory limit nothing: "
        "leave them out; on how many cores a rank computes threads says, "
    ) in said


def test_a_limit_that_is_none_is_said_once_for_each_service_that_has_it() -> None:
    graph = "graphs:disagg_wavepp"
    _, said = dry_run(graph, "--PrefillWorker.ServiceArgs.resources.memory=1Gi")
    assert said.count("# note: PrefillWorker.ServiceArgs.resources.memory limits nothing: ") == 1
    assert said.count("limits nothing") == 1
    _, said = dry_run(graph, "--DecodeWorker.ServiceArgs.resources.gpu=0")
    assert "limits nothing" not in said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "Processor: {router: kv}",
            "Processor.router ({file}, line 1): graph disagg_wavepp has no service Processor: Frontend tokenises now; "
            "leave the section out, and give its router as Frontend.router_mode; it has Frontend, ",
        ),
        ("VllmWorker: {}", "VllmWorker: graph disagg_wavepp has no service VllmWorker"),
        (
            "Frontend: {port: 8000}",
            "Frontend.port ({file}, line 1): unknown (did you mean Frontend.http_port?)",
        ),
        (
            "PrefillWorker: {conditional-disagg: true}",
            "PrefillWorker.conditional-disagg ({file}, line 1): decode workers that send long prompts ",
        ),
        (
            "PrefillWorker: {remote-prefill: true}",
            "PrefillWorker.remote-prefill ({file}, line 1): is a setting of workers ",
        ),
        (
            "PrefillWorker: {ServiceArgs: {image: x}}",
            "PrefillWorker.ServiceArgs.image ({file}, line 1): unknown; ",
        ),
    ],
)
def test_keys_that_are_gone(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert refused("graphs:disagg_wavepp", "-f", str(file)).startswith(sentence.replace("{file}", str(file)))
