"""The processes of one run that are kept running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from wavepp_worker.serve.discovery_entries import forgetter
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.keeper import Keeper
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.process import Process
from wavepp_worker.serve.run_dir import RunDir


class Fleet:
    """Keepers, of which some come and go.

    Attributes:
        keepers: in the order they stop.
        failure: of the first keeper that was relied on and has failed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        discovery: str,
        run_dir: RunDir,
        log: Log,
        limits: KeepLimits,
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            environment: what every process gets before its own variables.
            discovery: how processes find each other, by Dynamo's name.
            limits: each process's.
            changed: called whenever what is said of a process does, and when one has come or gone.
        """
        self.keepers: list[Keeper] = []
        self._environment = environment
        self._discovery = discovery
        self._run_dir = run_dir
        self._log = log
        self._limits = limits
        self._changed = changed
        self._deaths = run_dir.death_notes()
        self._tasks: dict[Keeper, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, process: Process) -> Keeper:
        """Have a process beside the others, after those of its service; ``start`` starts it."""
        keeper = Keeper(
            process,
            self._environment,
            self._run_dir.scratch(process.port),
            self._log,
            self._limits,
            self._changed,
            self._deaths,
            forgetter(self._discovery, {**self._environment, **process.env}),
        )
        of_service = [
            place for place, each in enumerate(self.keepers) if each.process.service == process.service
        ]
        self.keepers.insert(of_service[-1] + 1 if of_service else len(self.keepers), keeper)
        return keeper

    def start(self, keeper: Keeper) -> asyncio.Task[None]:
        """Keep it running; the task ends as ``Keeper.run`` does."""
        self._tasks[keeper] = asyncio.create_task(keeper.run())
        return self._tasks[keeper]

    def rely_on(self, keeper: Keeper) -> None:
        """Have it be a failure of the whole run if the keeper fails."""
        self._tasks[keeper].add_done_callback(self._ended)

    async def all_ended(self) -> None:
        """Return when no process is kept any more."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def remove(self, keeper: Keeper, seconds: float) -> None:
        """Stop it, as ``Keeper.stop`` does, and forget it."""
        await keeper.stop(seconds)
        self._deaths.back(keeper.process.label, time.monotonic())
        self.keepers.remove(keeper)
        if (task := self._tasks.pop(keeper, None)) is not None:
            await asyncio.gather(task, return_exceptions=True)
        self._changed()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)
