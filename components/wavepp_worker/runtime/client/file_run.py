"""A run over a file of prompts: what became of them, and a line for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wavepp_worker.errors import EngineDead, InvalidRequest, WaveppError
from wavepp_worker.runtime.client.prompt_feed import Answered, Asked, Prompt, PromptFeed
from wavepp_worker.runtime.client.prompt_progress import PromptProgress
from wavepp_worker.runtime.client.result_lines import ResultLines


@dataclass
class FileRun:
    """What became of a file's prompts.

    Attributes:
        prompts: lines written.
        failed: those of them that have an error.
        prompt_tokens, reused_tokens: of the others.
        start_seconds: until all ranks were ready, imports and loading included.
        seconds: from then on, until the last line was written.
        read: prompts that were read.
        total: prompts that there are, None while that is not known.
        signal: what interrupted it, 0 if nothing did.
        what: the file's prompts are called in sentences.
    """

    prompts: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    start_seconds: float = 0.0
    seconds: float = 0.0
    read: int = 0
    total: int | None = None
    signal: int = 0
    what: str = "prompts"

    @property
    def rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.seconds if self.seconds else 0.0

    def count(self, record: Mapping[str, Any]) -> None:
        """A line was written."""
        self.prompts += 1
        self.failed += "error" in record
        self.prompt_tokens += record.get("prompt_tokens", 0)
        self.reused_tokens += record.get("reused_tokens", 0)

    def written(self) -> str:
        """Of how many prompts there are results, as the beginning of a sentence."""
        of = f"the {self.read} {self.what} read so far" if self.total is None else f"{self.total} {self.what}"
        return f"the results of {self.prompts} of {of}"

    def summary(self) -> dict[str, Any]:
        """Counts, seconds, and tokens per second after the start, to be printed."""
        return {
            "prompts": self.prompts,
            "failed": self.failed,
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "start_seconds": round(self.start_seconds, 3),
            "seconds": round(self.seconds, 3),
            "prompt_tokens_per_second": round(self.rate, 1),
        }


def write_all(
    feed: PromptFeed[Prompt, Answered],
    record_of: Callable[[Asked[Prompt, Answered]], dict[str, Any]],
    results: ResultLines,
    progress: PromptProgress,
    run: FileRun,
) -> None:
    """Write a line for each prompt of a feed, and count it.

    Args:
        record_of: waits for what is to be said of a prompt; raises if that ends all.

    Raises:
        WaveppError: a line cannot be written; or as of ``record_of``, or of the feed.
        BrokenPipeError: nobody reads the results any more.
    """
    begun = time.monotonic()
    try:
        for asked in feed:
            record = record_of(asked)
            results.write(record)
            run.count(record)
            run.seconds = time.monotonic() - begun
            progress.show(asked.line.size, run.prompts, run.rate)
    finally:
        feed.close()
        run.read = feed.read
        run.total = feed.read if feed.finished else run.total


def result_record(asked: Asked[Prompt, Answered]) -> dict[str, Any]:
    """The line of a prompt's result, once that is there.

    Raises:
        EngineDead: there will be none.
    """
    identity, answer = asked.line.id, asked.answer
    try:
        if isinstance(answer, InvalidRequest):
            raise answer
        result = answer.result()
    except EngineDead:
        raise
    except WaveppError as error:
        return {"id": identity, "error": str(error)}
    return {
        "id": identity,
        "first_token": result.first_token,
        "top_logprobs": [[token, logprob] for token, logprob in result.top_logprobs],
        "reused_tokens": result.reused_tokens,
        "prompt_tokens": result.prompt_tokens,
        "seconds": round(result.seconds, 6),
    }
