"""Prompts as JSON lines of a file or of standard input, read as they are needed."""

from __future__ import annotations

import contextlib
import json
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from wavepp_worker.errors import ConfigError, InvalidRequest

STANDARD = Path("-")
"""Standard input, or standard output."""

_PROMPTS = ("token_ids", "text")

Asked = TypeVar("Asked")
"""What is asked on a line: a prompt, or a job."""


@dataclass(frozen=True)
class PromptLine(Generic[Asked]):
    """One line that is not empty.

    Attributes:
        id: whatever the line has, other lines too perhaps; None if it is not readable.
        prompt: what is asked, such as token ids or text; or what is wrong with the line.
        size: bytes of the line.
    """

    id: Any
    prompt: Asked | InvalidRequest
    size: int


@dataclass(frozen=True)
class PromptSource(Generic[Asked]):
    """An open file of prompts.

    Attributes:
        lines: to be read once.
        prompts: how many there are, None if that is not known before all are read.
        size: bytes of all lines, likewise.
    """

    lines: Iterator[PromptLine[Asked]]
    prompts: int | None = None
    size: int | None = None


@contextlib.contextmanager
def open_prompts(path: Path, read: Callable[[dict[str, Any]], Asked]) -> Iterator[PromptSource[Asked]]:
    """The prompts of a JSONL file, or of standard input if ``path`` is ``-``.

    Args:
        read: what a line's object asks for, such as ``read_prompt``; raises InvalidRequest if that is nothing.

    Raises:
        ConfigError: the file cannot be read.
    """
    if path == STANDARD:
        # Not sys.stdin itself: the interpreter could not end while another thread waits for its next line.
        stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        yield PromptSource(parse_lines(stream, "standard input", read))
        return
    try:
        stream = path.open("rb")
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"prompts is {path}, which cannot be read: {error.strerror}") from error
    if not regular:
        # Closing it would wait for another thread that waits for its next line.
        yield PromptSource(parse_lines(stream, path.name, read))
        return
    with stream:
        yield PromptSource(parse_lines(stream, path.name, read), *_count(stream))


def _count(stream: BinaryIO) -> tuple[int, int]:
    prompts = size = 0
    for line in stream:
        if line.strip():
            prompts, size = prompts + 1, size + len(line)
    stream.seek(0)
    return prompts, size


def parse_lines(
    lines: Iterable[bytes], source: str, read: Callable[[dict[str, Any]], Asked]
) -> Iterator[PromptLine[Asked]]:
    """What is on each line that is not empty; ``source`` is where they come from, for errors."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _parse(line, f"line {number} of {source}", read)


def _parse(line: bytes, where: str, read: Callable[[dict[str, Any]], Asked]) -> PromptLine[Asked]:
    try:
        record = json.loads(line)
        identity = record["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return PromptLine(None, InvalidRequest(f"{where} is not a JSON object with an id"), len(line))
    try:
        return PromptLine(identity, read(record), len(line))
    except InvalidRequest as error:
        return PromptLine(identity, error, len(line))


def read_prompt(record: dict[str, Any]) -> list[int] | str:
    """The prompt of a line's object.

    Raises:
        InvalidRequest: it has none, or something else.
    """
    unknown = sorted(record.keys() - {"id", *_PROMPTS})
    if unknown:
        raise InvalidRequest(
            f"a prompt has no key {json.dumps(unknown[0])}; give id, and token_ids or text, and nothing else"
        )
    given = [key for key in _PROMPTS if record.get(key) is not None]
    if len(given) > 1:
        raise InvalidRequest("a prompt has token_ids or text, and this one has both; leave one out")
    prompt = record[given[0]] if given else None
    if isinstance(prompt, list if given == ["token_ids"] else str):
        return prompt
    raise InvalidRequest("a prompt needs token_ids (a list of integers) or text (a string)")
