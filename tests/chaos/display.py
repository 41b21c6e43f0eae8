"""Shows a person how a run goes."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.chaos.faults import Fault, Injected
from tests.chaos.judge import FAILURES, Reply, Verdict


class Display:
    """A bar with counts, and a line for each fault and each failure; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts: Counter[str] = Counter()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}"),
            console=console,
        )
        self._task = self._progress.add_task("starting", total=None, counts="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._progress.stop()

    def phase(self, name: str, total: float | None = None) -> None:
        """What is being done now, and how much of it there is."""
        self._console.log(name)
        self._progress.reset(self._task, description=name, total=total)

    def step(self) -> None:
        """One more of the phase is done."""
        self._progress.advance(self._task)

    def advance(self, to: float) -> None:
        self._progress.update(self._task, completed=to)

    def fault(self, fault: Fault) -> None:
        self._console.log(f"{fault.at:7.1f} s  {fault}")

    def injected(self, injected: Injected) -> None:
        if not injected.victim:
            self._console.log(f"{injected.fault.at:7.1f} s  {injected.fault}: nobody was there")

    def outcome(self, verdict: Verdict, reply: Reply) -> None:
        self._counts[verdict.value] += 1
        self._progress.update(
            self._task, counts=", ".join(f"{count} {name}" for name, count in self._counts.most_common())
        )
        if verdict in FAILURES:
            self._console.log(f"[bold red]{verdict.value}[/]: {reply}")
