"""Variables that a service's settings give its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.testing
from wavepp_worker.errors import ConfigError
from wavepp_worker.serve import PLANES, Service
from wavepp_worker.serve.cli import app
from wavepp_worker.serve.service_variables import check_service_variables

WORKER = Service("Worker", "w", {"pp": 2}, common=(*PLANES, "model"))
FRONTEND = Service("Frontend", "f", kind="frontend")


def refused(service: Service, envs: dict[str, object], *flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_service_variables(service, "X.envs", envs, dict.fromkeys(flags, 1))
    return str(caught.value)


@pytest.mark.parametrize("key", PLANES)
def test_a_flag_that_all_processes_get_wins_over_a_variable(key: str) -> None:
    said = refused(WORKER, {f"DYN_{key.upper()}": "other"}, *PLANES)
    assert said == (
        f"X.envs.DYN_{key.upper()}: would do nothing, as the process gets a flag for it, which wins; give "
        f"--Common.{key}"
    )
    check_service_variables(WORKER, "X.envs", {f"DYN_{key.upper()}": "other"}, {"model": "m", key: None})


def test_so_does_one_that_the_service_is_given() -> None:
    assert refused(FRONTEND, {"DYN_ROUTER_MODE": "random"}, "router_mode").endswith(
        "; give Frontend.router_mode"
    )
    assert refused(FRONTEND, {"DYN_HTTP_PORT": "9000"}).endswith("; give Frontend.http_port")
    check_service_variables(WORKER, "X.envs", {"DYN_HTTP_PORT": "9000", "PP": "3"}, {"pp": 3})


@pytest.mark.parametrize("envs", [{"A=B": "x"}, {"": "x"}, {"A\0": "x"}, {"A": "x\0y"}])
def test_what_no_process_can_have_is_refused(envs: dict[str, object]) -> None:
    assert refused(WORKER, envs).startswith(
        f"X.envs: {next(iter(envs))!r} cannot be a variable with the value 'x"
    )


@pytest.mark.usefixtures("in_the_repository")
def test_a_graph_says_so_at_its_start(tmp_path: Path) -> None:
    words = ["serve", "graphs:disagg_wavepp", "--dry-run"]
    own = "--PrefillWorker.ServiceArgs.envs.DYN_NAMESPACE"
    result = typer.testing.CliRunner().invoke(app, [*words, f"{own}=other"])
    assert (result.exit_code, result.output) == (
        2,
        f"error: {own}: would do nothing, as the process gets a flag for it, which wins; give "
        "--Common.namespace\n",
    )
    file = tmp_path / "c.yaml"
    file.write_text('Common: {namespace: a}\nPrefillWorker: {ServiceArgs: {envs: {"A=B": x}}}\n')
    result = typer.testing.CliRunner().invoke(app, [*words, "-f", str(file)])
    assert result.exit_code == 2
    assert result.output.startswith(
        f"error: PrefillWorker.ServiceArgs.envs ({file}, line 2): 'A=B' cannot be"
    )
