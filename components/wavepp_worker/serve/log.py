"""What the user sees: every process's lines behind its name, and the launcher's own words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, cast

from rich.console import Console
from rich.text import Text

from wavepp_worker.serve.first_request import first_request
from wavepp_worker.serve.output_thread import OutputThread

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
_OWN = "dynamo serve"


class Log:
    """Writes to standard output, in colour where that is a terminal; takes no time, whoever reads it."""

    def __init__(self, labels: Iterable[str]) -> None:
        """``labels`` are the names lines can come from."""
        self._output = OutputThread()
        self._console = Console(
            file=cast("IO[str]", self._output), highlight=False, markup=False, emoji=False
        )
        self._styles = {label: _COLOURS[index % len(_COLOURS)] for index, label in enumerate(labels)}
        self._width = max(map(len, (*self._styles, _OWN)))

    def line(self, label: str, text: str) -> None:
        """One line of a process."""
        self._print(label, self._styles[label], Text.from_ansi(text))

    def say(self, text: str, style: str = "") -> None:
        """One line of the launcher."""
        self._print(_OWN, "bold", Text(text, style=style))

    def death(self, label: str, sentence: str, last_lines: Iterable[str]) -> None:
        """A process ended unasked: say so, with its last words."""
        self.say(f"{label} {sentence}; its last words:", style="bold red")
        for line in last_lines:
            self._print(label, self._styles[label], Text(f"  > {line}", style="red"))

    def ready(
        self, seconds: float, base_url: str | None, model: str | None, running: str, *, chats: bool = True
    ) -> None:
        """The line everybody waits for, and what to do next; ``chats`` says whether the model takes messages."""
        what = f": {model} at {base_url}" if base_url and model else ""
        self.say(f"ready in {seconds:.1f} s{what} ({running})", style="bold green")
        if base_url and model:
            command = first_request(base_url, model, chats=chats)
            # Without a prefix, and on one line, so that it can be pasted.
            self._console.print(Text(f"\n{command}\n", style="bold"), soft_wrap=True)
        self.say("Ctrl-C stops everything")

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        """While open, what is given to the yielded function is shown below the log of a terminal."""
        if not self._console.is_terminal:
            yield lambda text: None
            return
        with self._console.status("starting") as status:
            yield lambda text: status.update(text)

    def close(self) -> None:
        """Let the last lines out, within ``CLOSE_SECONDS``; there are none afterwards."""
        self._output.close()

    def _print(self, label: str, style: str, text: Text) -> None:
        self._console.print(Text.assemble((f"{label:<{self._width}} | ", style), text), soft_wrap=True)
