"""``wavepp submit``: a file of jobs to a queue, and their answers to another."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.nats_variables import SERVER_VARIABLE
from wavepp_worker.setting_names import flag_of
from wavepp_worker.standard_output import printing

SEE = "wavepp status says what runs here"


def submit(
    jobs: Annotated[
        Path,
        typer.Argument(help="JSONL: a job a line, {id, token_ids} or {id, text, ...}; - is standard input."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="JSONL of results, one line a job, in the order of the jobs, each as soon as it is there; "
            "- is standard output."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Name of the model; default: that of the graph of this user that takes jobs."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Dynamo namespace of the workers; default: the graph's, else dynamo.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="URLs of NATS servers; default: $NATS_SERVER, else the graph's own server."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run jobs once more that failed before.")] = False,
    ahead: Annotated[int, typer.Option(min=1, help="Most jobs that are sent and not answered.")] = 256,
) -> None:
    """Send every job of a file to the queue of a model's prefill workers, and write what they answer.

    An id is run once: the same file again gets the same answers, for an hour. Progress is on standard error; a summary
    is the last line of standard output, or of standard error where that has the results. Leaves with 1 if a job failed,
    with 130 or 143 if it was interrupted.
    """
    from wavepp_worker.intake.job_file import read_job_line, run_job_file
    from wavepp_worker.intake.prefill_queue import PrefillQueue
    from wavepp_worker.intake.running_queues import choose_queue, running_queues
    from wavepp_worker.runtime.client.prompt_lines import STANDARD, open_prompts
    from wavepp_worker.runtime.client.result_lines import open_results

    try:
        elsewhere = server is not None or SERVER_VARIABLE in os.environ
        if model is None or not elsewhere:
            graph = choose_queue(running_queues(), model, namespace, server_known=elsewhere, spell=flag_of)
            if graph is not None:
                model, namespace = graph.model, graph.namespace
            elif model is None:
                raise ConfigError(
                    f"--model: no graph of this user takes jobs here ({SEE}); start one with "
                    "--PrefillWorker.intake=nats, or give --model and --server of one that runs elsewhere"
                )
        with open_prompts(jobs, read_job_line) as source, open_results(out, jobs) as results:
            # A bar over lines of results would make both unreadable.
            shown = out != STANDARD or not sys.stdout.isatty()
            queue = PrefillQueue(model, namespace=namespace, server=server)
            run = run_job_file(queue, source, results, _warn, ahead=ahead, shown=shown, again=again)
    except ConfigError as error:
        _leave(str(error), 2)
    except WaveppError as error:
        _leave(str(error), 1)
    except BrokenPipeError as error:
        raise typer.Exit(128 + signal.SIGPIPE) from error
    if run.signal:
        sentence = f"interrupted: {run.written()} are written; jobs that were sent go on, send them again for the rest"
        typer.secho(sentence, fg="yellow", err=True)
        raise typer.Exit(128 + run.signal)
    with printing():
        typer.echo(json.dumps(run.summary()), err=out == STANDARD)
    if run.failed:
        _leave(f"{run.failed} of {run.prompts} jobs failed; their result lines say why", 1)


def _warn(sentence: str) -> None:
    typer.secho(f"warning: {sentence}", fg="yellow", err=True)


def _leave(sentence: str, code: int) -> NoReturn:
    typer.secho(f"error: {sentence}", fg="red", err=True)
    raise typer.Exit(code)
