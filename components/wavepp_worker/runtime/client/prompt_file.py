"""Prefill a file of prompts: JSON lines in, JSON lines out, with progress."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from wavepp_worker.errors import ConfigError, InvalidRequest, WaveppError
from wavepp_worker.model.sampling import SamplingParams
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult


@dataclass(frozen=True)
class Prompt:
    """One line of the prompt file; ``error`` says why it cannot be run."""

    id: Any
    token_ids: list[int]
    error: str | None = None


def read_prompts(path: Path, model: Path) -> Iterator[Prompt]:
    """The prompts of a JSONL file; ``text`` is tokenised with the model's tokenizer.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"prompts is {path}, which cannot be read: {error.strerror}") from error
    tokenizer = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            identity = record["id"]
        except (ValueError, KeyError, TypeError):
            problem = f"line {number} of {path.name} is not a JSON object with an id"
            yield Prompt(None, [], problem)
            continue
        if isinstance(record.get("token_ids"), list):
            yield Prompt(identity, record["token_ids"])
        elif isinstance(record.get("text"), str):
            if tokenizer is None:
                from transformers import AutoTokenizer

                tokenizer = AutoTokenizer.from_pretrained(model)
            yield Prompt(identity, tokenizer(record["text"])["input_ids"])
        else:
            yield Prompt(identity, [], "a prompt needs token_ids (a list of integers) or text (a string)")


def result_record(identity: Any, result: PrefillResult) -> dict[str, Any]:
    """A result as the line written for it."""
    return {
        "id": identity,
        "first_token": result.first_token,
        "top_logprobs": [[token, logprob] for token, logprob in result.top_logprobs],
        "reused_tokens": result.reused_tokens,
        "prompt_tokens": result.prompt_tokens,
        "seconds": round(result.seconds, 6),
    }


def run_file(config: EngineConfig, prompts: Path, out: Path) -> dict[str, Any]:
    """Prefill every prompt of a file, all submitted at once, in order.

    Returns:
        Counts, seconds and tokens per second of the whole file.

    Raises:
        ConfigError: the configuration or the files are wrong.
        EngineDead: the engine failed to start or died; results so far are written.
        AuditError: something leaked.
    """
    todo = list(read_prompts(prompts, config.model))
    sampling = SamplingParams(logprobs=config.top_logprobs)
    written = failed = tokens = reused = 0
    try:
        sink = out.open("w")
    except OSError as error:
        raise ConfigError(f"out is {out}, which cannot be written: {error.strerror}") from error
    with sink, PrefillEngine(config) as engine, _progress() as progress:
        begun = time.monotonic()
        jobs = [(prompt, _submit(engine, prompt, index, sampling)) for index, prompt in enumerate(todo)]
        for prompt, job in progress.track(jobs, description="prefill"):
            try:
                if isinstance(job, str):
                    raise InvalidRequest(job)
                result = job.result()
                record = result_record(prompt.id, result)
                tokens += result.prompt_tokens
                reused += result.reused_tokens
            except WaveppError as error:
                record = {"id": prompt.id, "error": str(error)}
                failed += 1
            sink.write(json.dumps(record) + "\n")
            written += 1
        seconds = time.monotonic() - begun
        engine.audit()
    return {
        "prompts": written,
        "failed": failed,
        "prompt_tokens": tokens,
        "reused_tokens": reused,
        "seconds": round(seconds, 3),
        "prompt_tokens_per_second": round(tokens / seconds, 1) if seconds else 0.0,
    }


def _submit(
    engine: PrefillEngine, prompt: Prompt, index: int, sampling: SamplingParams
) -> Future[PrefillResult] | str:
    if prompt.error is not None:
        return prompt.error
    try:
        request = PrefillRequest.of(f"line-{index}", prompt.token_ids, sampling=sampling)
        return engine.submit(request)
    except InvalidRequest as error:
        return str(error)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
