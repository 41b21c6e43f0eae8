"""``wavepp control``: one control of every worker of a graph, and what each answers."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import msgspec
import typer

from wavepp_worker.serve import health
from wavepp_worker.serve.runs import only_run
from wavepp_worker.setting_names import did_you_mean
from wavepp_worker.standard_output import printing

ANSWER_SECONDS = 60.0
"""How long a worker may take to answer, beyond the time that the control is told to wait (``timeout_s``)."""
MOST_WAIT_SECONDS = 600.0
"""That workers wait at most if they are told to; they refuse to wait longer at once."""
CONTROLS = (
    "audit",
    "clear_kv_blocks",
    "describe",
    "dump_state",
    "pause",
    "remote_prefill",
    "resume",
    "start_profile",
    "stop_profile",
    "timings",
    "why",
)
"""Those of our workers; not each has all of them."""


def chosen_workers(state: dict[str, Any], label: str | None) -> list[tuple[str, str]]:
    """Name and URL of the workers of a run, or of those of a service or of one replica (``SERVICE:0``)."""
    named = (
        (f"{each['service']}:{each['replica']}", each)
        for each in state["processes"]
        if each["url"] and each["kind"] == "worker"
    )
    return [(name, each["url"]) for name, each in named if label in (None, name, each["service"])]


def ask_all(
    workers: list[tuple[str, str]], name: str, body: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each worker answers, as they do: one that hangs keeps nobody from hearing of the others."""
    answers: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
    wait = body.get("timeout_s", 0.0)
    seconds = ANSWER_SECONDS
    if isinstance(wait, int | float) and wait > 0:
        seconds += min(wait, MOST_WAIT_SECONDS)

    def ask(label: str, url: str) -> None:
        answer = None
        try:
            answer = asyncio.run(health.control(url, name, body, seconds))
        finally:
            # Whatever happens to one: all are waited for.
            answers.put((label, _checked(answer, name, label)))

    for worker in workers:
        # Whoever gives the command up does not wait for them.
        threading.Thread(target=ask, args=worker, daemon=True).start()
    for _ in workers:
        yield answers.get()


def _checked(answer: Any, name: str, label: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        return {"status": "error", "message": f"{label} does not answer; see wavepp status"}
    if "status" not in answer:
        # What Dynamo says where a worker has no such control.
        known = (
            "" if name in CONTROLS else f"{did_you_mean(name, CONTROLS)}; workers have {', '.join(CONTROLS)}"
        )
        return {"status": "error", "message": f"{label} has no control {name}{known}"}
    return answer


def control(
    name: Annotated[
        str, typer.Argument(help="Of the control, such as clear_kv_blocks, pause, resume or dump_state.")
    ],
    body: Annotated[str, typer.Argument(help="A JSON object, as the control takes it.")] = "{}",
    worker: Annotated[
        str | None,
        typer.Option(
            help="A service, or one replica as PrefillWorker:0; by default all workers.", show_default=False
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the run; needed if several graphs of this user run.", show_default=False
        ),
    ] = None,
) -> None:
    """Have workers do what one of their controls says, and print each answer as a line of JSON, as it comes.

    Leaves with 1 if no graph runs, or some worker could not do it; with 2 if the words are wrong, or several graphs
    run and none is named.
    """
    if re.fullmatch("[A-Za-z0-9_]+", name) is None:
        raise typer.BadParameter(f"{name!r} is no name of a control; workers have {', '.join(CONTROLS)}")
    try:
        # json would take NaN and 1e400, and write what is no JSON; and what nests too deeply it cannot write.
        parsed = msgspec.json.decode(body)
        json.dumps(parsed)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise typer.BadParameter(f"{body!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise typer.BadParameter(f"{body!r} is no JSON object")
    workers = chosen_workers(only_run(run_dir), worker)
    if not workers:
        raise typer.BadParameter(f"no worker is called {worker}; wavepp status lists them")
    failed = False
    for label, answer in ask_all(workers, name, parsed):
        with printing():
            typer.echo(json.dumps({"worker": label, **answer}))
        failed |= answer["status"] != "ok"
    if failed:
        raise typer.Exit(1)
