"""``wavepp why``: where requests are that take long, asked of every worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from wavepp_worker.serve.control import chosen_workers
from wavepp_worker.serve.health import control
from wavepp_worker.serve.runs import found_runs
from wavepp_worker.standard_output import printable, printing

MOST = 20
"""Most requests that are listed."""
_IN_NOBODY = ("in the queue", "elsewhere")
"""What replicas say of a job that is in the queue's server alone, or at a replica that does not say so itself."""


class _Told(msgspec.Struct):
    """What is needed here of what a worker says of a request."""

    request_id: str
    state: str
    sentence: str
    seconds: float


class _Answer(msgspec.Struct):
    """The same of all that it says."""

    requests: list[_Told]
    jobs_queued: dict[str, int] = {}


async def ask(
    workers: list[tuple[str, str]], request_id: str | None
) -> tuple[list[dict[str, Any]], list[str], int]:
    """What the workers say, each request with its ``worker``; a sentence of each that does not say; jobs in queues."""
    body = {} if request_id is None else {"request_id": request_id}
    answers = await asyncio.gather(*(control(url, "why", body) for _, url in workers))
    found: list[dict[str, Any]] = []
    silent = []
    queues: dict[str, int] = {}
    for (name, url), answer in zip(workers, answers, strict=True):
        if isinstance(answer, dict) and answer.get("status") == "ok":
            try:
                told = msgspec.convert(answer, _Answer)
            except msgspec.ValidationError as error:
                silent.append(f"{name} at {url} does not say: its answer is of another version ({error})")
                continue
            found += [{"worker": name, **each} for each in answer["requests"]]
            # All replicas of a queue say how long it is, each as it saw it last.
            queues.update(
                {queue: max(jobs, queues.get(queue, 0)) for queue, jobs in told.jobs_queued.items()}
            )
        else:
            said = answer.get("message") if isinstance(answer, dict) else None
            silent.append(f"{name} at {url} does not say: {said or 'it does not answer'}")
    return found, silent, sum(queues.values())


def chosen(found: list[dict[str, Any]], request_id: str | None) -> list[dict[str, Any]]:
    """Of what the workers say, what is worth telling: who has a request, else who had it, else nobody."""
    if request_id is None:
        return sorted(found, key=lambda each: -each["seconds"])[:MOST]
    live = [each for each in found if each["state"] not in ("unknown", "over", *_IN_NOBODY)]
    # All replicas say the same of a job that none of them has.
    queued = [each for each in found if each["state"] in _IN_NOBODY][:1]
    # A decode worker that waits for the prefill does not know why; who prefills says that.
    live.sort(key=lambda each: each["state"] == "arriving")
    return live or queued or [each for each in found if each["state"] == "over"]


def line(each: dict[str, Any]) -> str:
    """One request as people read it; what a terminal would obey is shown as ``?``."""
    return printable(f"{each['worker']}  {each['request_id']} {each['sentence']}")


def why(
    request_id: Annotated[
        str | None,
        typer.Argument(
            help="Of an answer, of the header x-dynamo-request-id, of a log line or of a job; "
            "without, the requests that wait longest.",
            show_default=False,
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of a run; by default all runs of this user.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Say where a request is, and what it waits for; or so of the requests that wait longest.

    Leaves with 1 if no graph runs, no worker has the request, or none is heard of and some worker did not say.
    """
    try:
        (request_id or "").encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f"{request_id!r} has bytes that are no UTF-8, as no id has") from error
    workers = [each for _, state in found_runs(run_dir) for each in chosen_workers(state, None)]
    found, silent, jobs = asyncio.run(ask(workers, request_id))
    told = chosen(found, request_id)
    for sentence in silent:
        typer.secho(sentence, fg="yellow", err=True)
    with printing():
        if as_json:
            typer.echo(json.dumps(told))
        else:
            typer.echo("\n".join(map(line, told)), nl=bool(told))
    if jobs:
        typer.echo(
            f"{'1 job is' if jobs == 1 else f'{jobs:,} jobs are'} in the queue, taken by no replica yet; "
            "wavepp why with the id of one says where it is",
            err=True,
        )
    if not told:
        _nothing(request_id, len(workers), len(silent))


def _nothing(request_id: str | None, workers: int, silent: int) -> None:
    asked = f"{workers} worker{'' if workers == 1 else 's'} asked"
    if silent:
        asked += f", {silent} of them in vain"
    if request_id is not None:
        sentence = (
            f"no worker has request {request_id} ({asked}): it is over, not sent yet, or "
            "its id is another; wavepp why without an id lists those that wait"
        )
    elif silent:
        sentence = f"whether a request waits is not known ({asked}); wavepp status shows who lives"
    else:
        typer.echo(f"no request waits at a worker: none has one ({asked})", err=True)
        return
    typer.secho(sentence, fg="red", err=True)
    raise typer.Exit(1)
