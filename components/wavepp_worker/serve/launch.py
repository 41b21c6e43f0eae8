"""Carries a plan out: model, directory, broker, processes."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import yaml

from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.nats_variables import PASSWORD_VARIABLE
from wavepp_worker.serve.broker import Broker
from wavepp_worker.serve.environment import (
    BROKER_VARIABLE,
    CANARY,
    LOG_VARIABLE,
    LOOPBACK,
    QUIET,
    STORE_VARIABLE,
    allow_descriptors,
    base_environment,
)
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.launch_plan import LaunchPlan
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.run_dir import RunDir
from wavepp_worker.serve.supervisor import Supervisor


def describe(plan: LaunchPlan, limits: KeepLimits) -> str:
    """The plan for people: the merged configuration, and each process as a command line of a shell."""
    config = yaml.safe_dump(_plain(plan.config), sort_keys=False)
    inherited = with_short_spins(base_environment())
    shared = {
        key: value
        for key, value in with_short_spins({**LOOPBACK, **CANARY, **QUIET}).items()
        if inherited.get(key) == value
    }
    shared |= {LOG_VARIABLE: inherited[LOG_VARIABLE], **limits.stop.variables}
    if plan.own_store:
        shared[STORE_VARIABLE] = "<run directory>/store"
    if plan.own_broker:
        shared[BROKER_VARIABLE] = "<the launcher's event broker>"
    if plan.queue is not None:
        shared |= {**plan.queue.environment(), PASSWORD_VARIABLE: "<drawn for each run>"}
    parts = [f"# {plan.graph}: configuration, all sources merged", config]
    parts += ["# environment of every process", _assignments(shared, "\n"), ""]
    for process in plan.processes:
        command = f"{_assignments(process.env, ' ')} {shlex.join(process.argv)}".strip()
        parts += [f"# {process.label}", command, ""]
    parts += [f"# note: {note}" for note in plan.notes]
    return "\n".join(parts)


def launch(plan: LaunchPlan, *, run_dir: Path | None, limits: KeepLimits, verbose: bool = False) -> None:
    """Run the plan until interrupted; afterwards no process, socket or file of it is left.

    Args:
        run_dir: the run's directory; by default a private temporary one.
        limits: what each process is allowed.
        verbose: show what processes say while they come up and leave.

    Raises:
        ConfigError: the default model cannot be had, or the directory cannot be used.
        StartFailed: the graph did not come up.
    """
    if plan.wants_demo:
        from wavepp_worker.model.files.demo_model import ensure_demo_model

        plan = plan.with_model(ensure_demo_model())
    labels = [*(process.label for process in plan.processes), *plan.later_labels()]
    with closing(plan.held), closing(Log(labels, verbose=verbose)) as log:
        _launch(plan, run_dir, limits, log)


def _launch(plan: LaunchPlan, run_dir: Path | None, limits: KeepLimits, log: Log) -> None:
    allow_descriptors()
    directory = RunDir(run_dir)
    broker = None
    try:
        # Not the shell's, as the launcher kills by the same.
        environment = {**base_environment(), **limits.stop.variables, **directory.environment()}
        if plan.own_store:
            environment[STORE_VARIABLE] = str(directory.store)
        if plan.own_broker:
            # Events have the token ids of prompts in them: files that this user alone can reach, not ports.
            broker = Broker(f"ipc://{directory.path}/events-in", f"ipc://{directory.path}/events-out")
            environment[BROKER_VARIABLE] = broker.url
        if plan.queue is not None:
            plan.queue.write(directory.path)
            environment |= plan.queue.environment()
            plan = plan.in_directory(directory.path)
        asyncio.run(_supervise(plan, environment, directory, log, limits))
    finally:
        if broker is not None:
            broker.close()
        stuck = directory.close()
        if stuck:
            log.say(f"these processes could not be killed: {stuck}", "bold red")


async def _supervise(
    plan: LaunchPlan, environment: Mapping[str, str], directory: RunDir, log: Log, limits: KeepLimits
) -> None:
    await Supervisor(plan, environment, directory, log, limits).run()


def _plain(value: object) -> object:
    """Only what YAML has a notation for."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _assignments(variables: Mapping[str, str], between: str) -> str:
    return between.join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
