"""What the user sees: every process's lines behind its name, and the launcher's own words.

With ``DYN_LOGGING_JSONL`` each line is a JSON object, with the name as its ``process``, whoever it is from.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from wavepp_worker.log_form import line_time, lines_are_json
from wavepp_worker.serve.banner import banner
from wavepp_worker.serve.first_request import first_request
from wavepp_worker.serve.log_lines import is_probe, is_small_talk
from wavepp_worker.serve.output_thread import OutputThread

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
_OWN = "dynamo serve"
_LEVELS = {"red": "ERROR", "bold red": "ERROR", "yellow": "WARN"}
_HIDDEN = 40


class Log:
    """Writes to standard output, in colour where that is a terminal; takes no time, whoever reads it.

    Attributes:
        settled: the graph is up and does not stop.
    """

    def __init__(self, labels: Iterable[str], *, verbose: bool = False) -> None:
        """
        Args:
            labels: the names lines can come from.
            verbose: show what processes say while they come up and leave, whatever it is.
        """
        self.settled = False
        self._verbose = verbose or "DYN_LOG" in os.environ
        self._json = lines_are_json(os.environ)
        self._hidden: deque[tuple[str, str]] = deque(maxlen=_HIDDEN)
        self._output = OutputThread()
        self._console = Console(
            file=cast("IO[str]", self._output), highlight=False, markup=False, emoji=False
        )
        self._styles = {label: _COLOURS[index % len(_COLOURS)] for index, label in enumerate(labels)}
        self._width = max(map(len, (*self._styles, _OWN)))

    def line(self, label: str, text: str, *, settled: bool) -> None:
        """One line of a process, which is ``settled`` if it is up and does not stop."""
        if is_probe(text):
            return
        if self._verbose or (settled and self.settled) or not is_small_talk(text):
            self._from_process(label, text)
        else:
            self._hidden.append((label, text))

    def reveal(self) -> None:
        """Show the last of what was hidden, as the graph does not come up."""
        while self._hidden:
            self._from_process(*self._hidden.popleft())

    def say(self, text: str, style: str = "") -> None:
        """One line of the launcher."""
        if self._json:
            self._output.write(own_line(time.time(), _LEVELS.get(style, "INFO"), text) + "\n")
        else:
            self._print(_OWN, "bold", Text(text, style=style))

    def death(self, label: str, sentence: str, last_lines: Iterable[str]) -> None:
        """A process ended unasked: say so, with its last words."""
        self.say(f"{label} {sentence}; its last words:", style="bold red")
        for line in last_lines:
            if self._json:
                self._from_process(label, line)
            else:
                self._print(label, self._styles[label], Text(f"  > {line}", style="red"))

    def ready(self, seconds: float, state: Mapping[str, Any], running: str, *, chats: bool = True) -> None:
        """The line everybody waits for, what runs where, and what to do next.

        Args:
            state: as ``state.json`` has it.
            running: the processes in short.
            chats: whether the model takes messages.
        """
        base_url, model = state["base_url"], state["model"]
        what = f": {model} at {base_url}" if base_url and model else ""
        self.say(f"ready in {seconds:.1f} s{what} ({running})", style="bold green")
        for line in banner(state):
            self.say(line)
        if base_url and model:
            command = first_request(base_url, model, chats=chats)
            if self._json:
                self.say(command)
            else:
                # Without a prefix, and on one line, so that it can be pasted.
                self._console.print(Text(f"\n{command}\n", style="bold"), soft_wrap=True)
        self.say("Ctrl-C stops everything")

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        """While open, what is given to the yielded function is shown below the log of a terminal."""
        if not self._console.is_terminal or self._json:
            yield lambda text: None
            return
        with self._console.status("starting") as status:
            yield lambda text: status.update(text)

    def close(self) -> None:
        """Let the last lines out, within ``CLOSE_SECONDS``; there are none afterwards."""
        self._output.close()

    def _from_process(self, label: str, text: str) -> None:
        if not self._json:
            self._print(label, self._styles[label], Text.from_ansi(text))
            return
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            entry = {"level": "INFO", "target": "stderr", "message": text}
        self._object(label, entry)

    def _object(self, label: str, entry: dict[str, Any]) -> None:
        self._output.write(_json_line(time.time(), label, entry) + "\n")

    def _print(self, label: str, style: str, text: Text) -> None:
        self._console.print(Text.assemble((f"{label:<{self._width}} | ", style), text), soft_wrap=True)


def own_line(now: float, level: str, message: str) -> str:
    """One line of the launcher as a JSON object; ``now`` in seconds since 1970."""
    return _json_line(now, _OWN, {"level": level, "target": _OWN, "message": message})


def _json_line(now: float, label: str, entry: Mapping[str, Any]) -> str:
    return json.dumps({"time": line_time(now), **entry, "process": label})
