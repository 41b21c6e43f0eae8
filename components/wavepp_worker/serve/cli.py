"""The ``dynamo`` command."""

from __future__ import annotations

import os
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml
from typer.core import TyperCommand, TyperGroup

from wavepp_worker.errors import ConfigError
from wavepp_worker.liveness.stop_times import FRONTEND_VARIABLE, WORKER_VARIABLE, StopTimes
from wavepp_worker.log_form import lines_are_json
from wavepp_worker.serve.config_sources import deep_merge, merge, read_file, split_overrides
from wavepp_worker.serve.former_launcher import COMMANDS, OPTIONS, variable_objection
from wavepp_worker.serve.graph import COMMON, GRAPHS, Graph, resolve, shipped
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.keeper import CONFIG_EXIT_CODE, StartFailed
from wavepp_worker.serve.launch import describe, launch
from wavepp_worker.serve.launch_plan import Options, make_launch_plan
from wavepp_worker.serve.log import own_line
from wavepp_worker.serve.run_dir import check_run_dir
from wavepp_worker.serve.setting_variables import variable_settings
from wavepp_worker.serve.written_keys import WrittenKeys
from wavepp_worker.setting_names import nearest
from wavepp_worker.standard_output import printing
from wavepp_worker.versions import print_versions


class _WithFormerCommands(TyperGroup):
    """Says of commands that Dynamo 0.3 had what there is instead."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in COMMANDS:
            _fail(f"{args[0]}: is a command of Dynamo 0.3: {COMMANDS[args[0]]}", CONFIG_EXIT_CODE)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_WithFormerCommands,
    help="Run graphs of Dynamo services.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_OVERRIDES = "overrides"
_WORDS = "words"
_VARIABLES = "variables"
_SETTING = re.compile(
    r"--(?P<key>[^=]+)(?:=(?P<value>.*))?|(?P<bare>[A-Za-z_][\w-]*)=(?P<of_bare>.*)", re.DOTALL
)


class _WithOverrides(TyperCommand):
    """Takes ``--Service.key=value`` out before options are parsed, so that a misspelt option is noticed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_WORDS] = tuple(args)
        try:
            rest, ctx.meta[_OVERRIDES] = split_overrides(args)
        except ConfigError as error:
            _fail(str(error), CONFIG_EXIT_CODE)
        options = {option.lstrip("-") for each in self.get_params(ctx) for option in each.opts}
        valued = {
            option
            for each in self.get_params(ctx)
            if not getattr(each, "is_flag", False)
            for option in each.opts
        }
        for before, word in pairwise(("", *rest)):
            match = _SETTING.fullmatch(word)
            if match is None or (before in valued and not word.startswith("--")):
                continue
            key = match["key"] or match["bare"]
            if word.startswith("--") and key in OPTIONS:
                _fail(f"--{key}: is of Dynamo 0.3's launcher: {OPTIONS[key]}", CONFIG_EXIT_CODE)
            value = match["value"] or match["of_bare"] or "VALUE"
            # One that is like an option is typer's to complain of.
            if not word.startswith("--") or (key not in options and not nearest(key, options)):
                key = nearest(key, _usual_keys()) or key
                _fail(
                    f"{word.partition('=')[0]}: no such option; a setting of a service is written "
                    f"--Service.{key}={value}, such as --PrefillWorker.{key}={value}, or --Common.{key}={value} for "
                    "all that take it",
                    CONFIG_EXIT_CODE,
                )
        return super().parse_args(ctx, rest)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[--Service.key=value ...]"]


@app.callback()
def dynamo(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print versions.", callback=print_versions, is_eager=True),
    ] = False,
) -> None:
    """Run graphs of Dynamo services."""


@app.command(cls=_WithOverrides)
def serve(
    context: typer.Context,
    graph: Annotated[
        str | None,
        typer.Argument(
            help="package.module:name, e.g. graphs:disagg_wavepp, or file.py[:name]; without it, the graphs "
            "there are.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="YAML: a section per service, and Common.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Short for --Common.model: a Hugging Face directory; without, the default model, which is made once "
            "and takes the extra demo."
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address HTTP is served on (default: 127.0.0.1).", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of HTTP (default: 8000, or the next free one).", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started.")] = False,
    service_name: Annotated[
        str | None, typer.Option(help="Start this service only; the others run elsewhere.")
    ] = None,
    dynamo_planner: Annotated[
        bool,
        typer.Option(
            "--dynamo-planner",
            help="Start and stop workers as Dynamo's planner decides (its environment: virtual); takes etcd.",
        ),
    ] = False,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of this run, with state.json; must be new or empty, removed at the end."
        ),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds until everything must be ready, and a process that is restarted."),
    ] = KeepLimits.start_seconds,
    health_timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds without an answer to health checks until a process is killed and restarted."
        ),
    ] = KeepLimits.silent_seconds,
    restarts_per_minute: Annotated[
        int, typer.Option(min=1, help="Most restarts of a process in any minute.")
    ] = KeepLimits.restarts_per_minute,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Show all that processes say while they come up and leave."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print versions.", callback=print_versions, is_eager=True),
    ] = False,
    stop_timeout: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seconds that requests have to end once a process is told to stop (default: Dynamo's, 5 at a frontend "
            f"and 25 at a worker, or what {FRONTEND_VARIABLE} and {WORKER_VARIABLE} say).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start every service of GRAPH, say when it is ready, and stop all of it on Ctrl-C.

    --Service.key=value sets a flag of a service (--PrefillWorker.pp=3), --Common.key=value of all that have
    it, --Service.ServiceArgs.workers=N the number of processes, --Service.ServiceArgs.envs.NAME=value their
    environment. python -m wavepp_worker.dynamo.prefill --help lists a prefill worker's settings, as flags.
    """
    try:
        if graph is None:
            with printing():
                typer.echo(list_graphs())
            return
        if (objection := variable_objection()) is not None:
            raise ConfigError(objection)
        chosen = resolve(graph)
    except ConfigError as error:
        _fail(str(error), CONFIG_EXIT_CODE)
    try:
        if model is not None and "model" in context.meta[_OVERRIDES].get(COMMON, {}):
            raise ConfigError(
                f"--model: is short for --{COMMON}.model, which is given as well; keep one of the two"
            )
        short = {COMMON: {"model": model}} if model is not None else {}
        given = deep_merge(context.meta[_OVERRIDES], short)
        variables, context.meta[_VARIABLES] = variable_settings(chosen, given)
        config = merge(chosen, read_file(file) if file else {}, variables, given)
        plan = make_launch_plan(
            chosen, config, Options(host=host, port=port, only=service_name, dynamo_planner=dynamo_planner)
        )
        stop = StopTimes.of(stop_timeout, os.environ)
        limits = KeepLimits(start_timeout, health_timeout, restarts_per_minute, stop)
        check_run_dir(run_dir)
        if dry_run:
            with printing():
                typer.echo(describe(plan, limits))
            return
        launch(plan, run_dir=run_dir, limits=limits, verbose=verbose)
    except ConfigError as error:
        _fail(_as_written(error, chosen, context, file, model), CONFIG_EXIT_CODE)
    except StartFailed as error:
        _fail(str(error), error.code)


def _usual_keys() -> set[str]:
    services = [service for graph in shipped() for service in graph.services]
    return {key for each in services for key in (*each.defaults, *each.common, *each.unshared)}


def list_graphs() -> str:
    """The graphs that come with this package, for people."""
    lines = ["graphs there are:", ""]
    for graph in shipped():
        services = ", ".join(
            service.name if service.replicas == 1 else f"{service.replicas} {service.name}"
            for service in graph.services
        )
        lines += [f"  {GRAPHS}:{graph.name}", f"      {graph.about} ({services})"]
    lines += [
        "",
        f"start one: dynamo serve {GRAPHS}:{shipped()[0].name} (--dry-run shows what would be started, and with what)",
        "start one of your own: dynamo serve mygraph.py (docs/graphs.md has an example)",
    ]
    return "\n".join(lines)


def _as_written(
    error: ConfigError, graph: Graph, context: typer.Context, file: Path | None, model: str | None
) -> str:
    short = {f"{COMMON}.model": "--model"} if model is not None else {}
    short |= context.meta.get(_VARIABLES, {})
    try:
        return WrittenKeys(graph, context.meta[_WORDS], file, short).rewrite(str(error))
    except (ConfigError, yaml.YAMLError):
        # It is the file that is wrong.
        return str(error)


def _fail(message: str, code: int) -> NoReturn:
    if lines_are_json(os.environ):
        typer.echo(own_line(time.time(), "ERROR", message), err=True)
    else:
        typer.secho(f"error: {message}", fg="red", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
