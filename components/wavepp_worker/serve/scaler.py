"""Carries out what Dynamo's planner decides: starts replicas, and stops them once their requests have ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.liveness.stop_times import KILL_SECONDS
from wavepp_worker.serve.fleet import Fleet
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.keeper import Keeper
from wavepp_worker.serve.launch_plan import LaunchPlan
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.planner_link import PlannerLink
from wavepp_worker.serve.scaling import Bounds, Decision, steps_to, within_bounds

RETRY_SECONDS = 30.0
"""Until what there was no GPU, memory or port for is tried again."""
_POLL_SECONDS = 0.1


class Scaler:
    """The replicas of a run that the planner decides the number of.

    Attributes:
        decision: the latest that was begun; None before.
        shortfall: why there are not as many replicas as it asks for; empty if there are.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        fleet: Fleet,
        link: PlannerLink,
        log: Log,
        limits: KeepLimits,
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            limits: of each process.
            changed: called whenever ``decision`` or ``shortfall`` does.
        """
        self.decision: Decision | None = None
        self.shortfall: tuple[str, ...] = ()
        self._plan = plan
        self._fleet = fleet
        self._link = link
        self._log = log
        self._limits = limits
        self._changed = changed
        self._names = {role: each.service.name for role, each in plan.replicas.items()}
        self._bounds = {role: Bounds(each.own.fewest, each.own.most) for role, each in plan.replicas.items()}
        self._failed: dict[tuple[str, int], str] = {}

    async def run(self) -> None:
        """Follow the planner until this is cancelled."""
        while True:
            decision = await self._link.changed(RETRY_SECONDS if self.shortfall else None)
            if decision is None:
                continue
            if decision != self.decision:
                self.decision, self._failed = decision, {}
                self._say_decided(decision)
            self._settle(await self._carry_out(decision))
            # Also if not all of it could be done: else the planner would decide nothing more for half an hour.
            self._link.carried_out(decision)

    def state(self) -> dict[str, Any]:
        """For ``state.json``: the latest decision, its numbers by service, and what it lacks."""
        decision = self.decision
        return {
            "decision": None if decision is None else decision.number,
            "workers": {}
            if decision is None
            else {
                self._names[role]: count for role, count in decision.workers.items() if role in self._names
            },
            "shortfall": list(self.shortfall),
        }

    def _say_decided(self, decision: Decision) -> None:
        asked = ", ".join(
            f"{decision.workers[role]} of {name}"
            for role, name in self._names.items()
            if role in decision.workers
        )
        self._log.say(
            f"the planner's decision {decision.number}: {asked or 'nothing that is started here'}", "bold"
        )
        self._changed()

    async def _carry_out(self, decision: Decision) -> list[str]:
        """Why there are not as many replicas as the planner decided; empty if there are."""
        wanted, shortfall = within_bounds(decision, self._bounds, self._names)
        steps = steps_to(wanted, self._present())
        missing = await self._start(each for each in steps.start if each not in self._failed)
        await asyncio.gather(*(self._stop(*each) for each in steps.stop))
        if missing and steps.stop:
            # What those had that are gone is free now.
            missing = await self._start(missing)
        return [*shortfall, *missing.values(), *self._failed.values()]

    def _present(self) -> dict[str, list[int]]:
        return {role: [each.process.replica for each in self._keepers(role)] for role in self._names}

    def _keepers(self, role: str) -> list[Keeper]:
        return [each for each in self._fleet.keepers if each.process.service == self._names[role]]

    async def _start(self, replicas: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Start replicas and wait until they are ready; why there is nothing for some of them now."""
        missing: dict[tuple[str, int], str] = {}
        starting = []
        for role, number in replicas:
            try:
                process = self._plan.further(role, number)
            except ConfigError as error:
                missing[role, number] = f"{self._names[role]}:{number} cannot be started: {error}"
                continue
            starting.append(self._come_up(role, number, self._fleet.add(process)))
        await asyncio.gather(*starting)
        return missing

    async def _come_up(self, role: str, number: int, keeper: Keeper) -> None:
        task = self._fleet.start(keeper)
        end = time.monotonic() + self._limits.start_seconds
        while not keeper.ready and not task.done() and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
        if keeper.ready:
            self._fleet.rely_on(keeper)
            return
        why = f"is not ready after {self._limits.start_seconds:.0f} s (--start-timeout)"
        if task.done():
            with contextlib.suppress(asyncio.CancelledError):
                why = str(task.exception() or why)
        self._failed[role, number] = f"{self._names[role]}:{number} is given up: {why}"
        await self._remove(role, keeper)

    async def _stop(self, role: str, number: int) -> None:
        for keeper in self._keepers(role):
            if keeper.process.replica == number:
                self._log.say(
                    f"{keeper.process.label} is to leave; its requests have {self._limits.stop.requests} s"
                )
                await self._remove(role, keeper)
                self._log.say(f"{keeper.process.label} is gone")

    async def _remove(self, role: str, keeper: Keeper) -> None:
        await self._fleet.remove(keeper, self._limits.stop.requests + KILL_SECONDS)
        self._plan.replicas[role].release(keeper.process.replica)

    def _settle(self, shortfall: Iterable[str]) -> None:
        before, self.shortfall = self.shortfall, tuple(shortfall)
        assert self.decision is not None
        for sentence in self.shortfall:
            if sentence not in before:
                self._log.say(f"the planner's decision {self.decision.number}: {sentence}", "red")
        if not self.shortfall:
            self._log.say(f"the planner's decision {self.decision.number} is carried out", "green")
        self._changed()
