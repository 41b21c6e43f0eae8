"""How far a file of prompts is, on standard error."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from wavepp_worker.runtime.client.prompt_lines import PromptSource


class PromptProgress(Progress):
    """Prompts done, prompt tokens per second, and the time left by bytes of the file that are not done."""

    def __init__(self, source: PromptSource[Any], *, shown: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[prompts]}"),
            TextColumn("{task.fields[rate]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            # Whoever reads standard output gets results alone, wherever standard error goes.
            redirect_stdout=False,
            disable=not shown,
        )
        self._of = "" if source.prompts is None else f" of {source.prompts}"
        self._task: TaskID = self.add_task(
            "starting", total=source.size, start=False, prompts=f"0{self._of}", rate="0"
        )

    def begin(self, what: str = "prefill") -> None:
        """What answers has started: time counts from here.

        Args:
            what: is done with the prompts.
        """
        self.start_task(self._task)
        self.update(self._task, description=what)

    def show(self, size: int, prompts: int, rate: float) -> None:
        """A prompt is done.

        Args:
            size: bytes of its line.
            prompts: how many are done.
            rate: prompt tokens per second so far.
        """
        self.update(self._task, advance=size, prompts=f"{prompts}{self._of}", rate=f"{rate:,.0f}")
