"""The ``wavepp`` command: the prefill engine without a server, and what is asked of graphs that run."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.former_names import check_names
from wavepp_worker.inspect_command import inspect
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.serve.control import control
from wavepp_worker.serve.status import status
from wavepp_worker.serve.top import top
from wavepp_worker.serve.why import why
from wavepp_worker.setting_names import flag_of, keys_as_flags
from wavepp_worker.standard_output import printing
from wavepp_worker.submit_command import submit
from wavepp_worker.versions import print_versions

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(status)
app.command()(inspect)
app.command()(submit)
app.command()(top)
app.command()(why)
app.command()(control)


@app.callback()
def wavepp(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print versions.", callback=print_versions, is_eager=True),
    ] = False,
) -> None:
    """Prefill without a server, look into a model, send jobs to a queue, and ask graphs that run."""


def engine_config(**values: Any) -> EngineConfig:
    """An EngineConfig of flag values; None is a flag that was not given.

    Raises:
        ConfigError: a value is wrong, or given under two names; the message names the flag.
    """
    given = {key: value for key, value in values.items() if value is not None}
    try:
        check_names(given, flag_of)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return EngineConfig.spelt(given, flag_of)


def parse_numbers(text: str, key: str) -> tuple[int, ...]:
    """``10,8,6`` as a tuple.

    Raises:
        ConfigError: not comma-separated integers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{key} is {text!r}; give integers separated by commas, e.g. 10,8,6,6") from error


@app.command()
def prefill(
    prompts: Annotated[
        Path, typer.Option(help="JSONL: {id, token_ids} or {id, text} a line; - is standard input.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="JSONL of results, one line a prompt, in the order of the prompts, each as soon as it is there; "
            "- is standard output."
        ),
    ],
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model directory; default: the demo model.")
    ] = None,
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")] = 1,
    partition: Annotated[str | None, typer.Option(help="Layers per rank, e.g. 10,8,6,6.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="auto, or fp8 for about half the bytes.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Compute threads per rank.")] = 1,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in a wave (default: 512; formerly --chunk).")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per KV block (default: 16; formerly --block).")
    ] = None,
    kv_tokens: Annotated[
        str | None,
        typer.Option(
            help="Tokens of KV per rank: one number, or one per rank (default: 32768).", show_default=False
        ),
    ] = None,
    kv_memory_fraction: Annotated[
        float | None,
        typer.Option(
            help="Instead of that: fraction of the memory that is free beside weights and activations."
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt; default: the model's context.")
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help="Most requests that share waves, and most that hold a lease (default: 64; formerly --max-batch)."
        ),
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a trace of every rank here, for ui.perfetto.dev.")
    ] = None,
    top_logprobs: Annotated[int, typer.Option(help="Alternatives to report for the first token.")] = 20,
    chunk: Annotated[int | None, typer.Option(hidden=True)] = None,
    block: Annotated[int | None, typer.Option(hidden=True)] = None,
    max_batch: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Prefill every prompt of a file and write its first token, logprobs and reuse.

    Progress is on standard error; a summary is the last line of standard output, or of standard error where that has
    the results. Leaves with 1 if a prompt failed, with 130 or 143 if it was interrupted.
    """
    from wavepp_worker.model.files.demo_model import ensure_demo_model
    from wavepp_worker.model.model_shape import read_model_shape
    from wavepp_worker.runtime.client.prompt_lines import STANDARD, open_prompts, read_prompt
    from wavepp_worker.runtime.client.result_lines import open_results
    from wavepp_worker.runtime.client.start_checks import check_start

    begun = time.monotonic()
    try:
        pools = (None,) if kv_tokens is None else parse_numbers(kv_tokens, "kv_tokens")
        config = engine_config(
            model=model or ensure_demo_model(),
            pp=pp,
            partition=parse_numbers(partition, "partition") if partition else None,
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=device,
            threads=threads,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            kv_tokens=pools[0] if len(pools) == 1 else pools,
            kv_memory_fraction=kv_memory_fraction,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            timeline=timeline,
            top_logprobs=top_logprobs,
            chunk=chunk,
            block=block,
            max_batch=max_batch,
        )
        check_start(config, read_model_shape(config.model))
        with open_prompts(prompts, read_prompt) as source, open_results(out, prompts) as results:
            ranks = "1 rank" if pp == 1 else f"{pp} ranks"
            typer.echo(f"loading {config.model}, starting {ranks}", err=True)
            # Imported late, as what cannot work is said before tensor libraries are loaded.
            from wavepp_worker.runtime.client.prompt_file import run_file

            # A bar over lines of results would make both unreadable.
            shown = out != STANDARD or not sys.stdout.isatty()
            run = run_file(config, source, results, begun=begun, shown=shown)
    except ConfigError as error:
        _complain(keys_as_flags(str(error), (*EngineConfig.model_fields, "prompts", "out")))
        raise typer.Exit(2) from error
    except WaveppError as error:
        _complain(str(error))
        raise typer.Exit(1) from error
    except BrokenPipeError as error:
        raise typer.Exit(128 + signal.SIGPIPE) from error
    if run.signal:
        typer.secho(f"interrupted: {run.written()} are written", fg="yellow", err=True)
        raise typer.Exit(128 + run.signal)
    with printing():
        typer.echo(json.dumps(run.summary()), err=out == STANDARD)
    if run.failed:
        _complain(f"{run.failed} of {run.prompts} prompts failed; their result lines say why")
        raise typer.Exit(1)


def _complain(sentence: str) -> None:
    typer.secho(f"error: {sentence}", fg="red", err=True)
