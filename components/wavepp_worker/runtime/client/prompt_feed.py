"""Submits prompts ahead of whoever takes their answers, a bounded number at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from wavepp_worker.errors import InvalidRequest
from wavepp_worker.runtime.client.prompt_lines import PromptLine

Prompt = TypeVar("Prompt")


class Answer(Protocol):
    """What is said of a prompt that was prefilled; ``PrefillResult`` says what each is."""

    @property
    def first_token(self) -> int: ...
    @property
    def top_logprobs(self) -> tuple[tuple[int, float], ...]: ...
    @property
    def reused_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...


Answered = TypeVar("Answered", bound=Answer)


@dataclass(frozen=True)
class Asked(Generic[Prompt, Answered]):
    """A prompt, and what answers it: why it was refused, if it was."""

    line: PromptLine[Prompt]
    answer: Future[Answered] | InvalidRequest


class PromptFeed(Generic[Prompt, Answered]):
    """Iterate over it once, from one thread: prompts in their order, each when it was submitted.

    Another thread reads and submits them, so that a slow source holds up no answer.

    Attributes:
        read: prompts that were read so far.
        finished: those are all.
    """

    def __init__(
        self,
        lines: Iterable[PromptLine[Prompt]],
        submit: Callable[[Prompt], Future[Answered]],
        window: int,
    ) -> None:
        """Nothing is read yet.

        Args:
            window: most prompts that are submitted and not taken.
        """
        self.read = 0
        self.finished = False
        self._lines = lines
        self._submit = submit
        self._places = threading.Semaphore(window)
        self._closed = False
        self._asked: SimpleQueue[Asked[Prompt, Answered] | Exception | None] = SimpleQueue()

    def __iter__(self) -> Iterator[Asked[Prompt, Answered]]:
        """The prompts; what reading or submitting one raises, but for InvalidRequest, is raised here."""
        threading.Thread(target=self._run, name="prompts", daemon=True).start()
        while (asked := self._asked.get()) is not None:
            if isinstance(asked, Exception):
                raise asked
            yield asked
            self._places.release()

    def close(self) -> None:
        """Submit nothing more, and let whoever waits for the next prompt go; from any thread."""
        self._closed = True
        self._places.release()
        self._asked.put(None)

    def _run(self) -> None:
        try:
            for line in self._lines:
                self.read += 1
                self._places.acquire()
                if self._closed:
                    return
                self._asked.put(Asked(line, self._answer(line)))
            self.finished = True
            self._asked.put(None)
        except Exception as error:
            self._asked.put(error)

    def _answer(self, line: PromptLine[Prompt]) -> Future[Answered] | InvalidRequest:
        if isinstance(line.prompt, InvalidRequest):
            return line.prompt
        try:
            return self._submit(line.prompt)
        except InvalidRequest as error:
            return error
