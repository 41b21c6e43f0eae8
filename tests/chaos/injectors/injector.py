"""Carries faults out on a running graph."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.faults import Fault, Injected, Kind, Role
from tests.chaos.injectors import disk, flood, limits, signals
from tests.chaos.processes import listening_ports, pids_of
from tests.support.graph_process import RunningGraph

VICTIM_SECONDS = 20.0
"""That a fault waits for somebody to hurt: a replica that was hurt a moment ago is just being started again."""


class Injector:
    """Chooses the victim of each fault among those that live, hurts it, and lets go in time."""

    def __init__(
        self, graph: RunningGraph, broker: BrokerProcess, disk_path: Path | None, now: Callable[[], float]
    ) -> None:
        """``disk_path`` is where the ranks' disk tiers are, if they have one."""
        self._graph = graph
        self._broker = broker
        self._disk_path = disk_path
        self._now = now

    async def inject(self, fault: Fault) -> Injected:
        """Do it, wait until it is undone, and say whom it hit."""
        give_up = self._now() + VICTIM_SECONDS
        while True:
            began = self._now()
            victims = self._victims(fault.role)
            victim = victims[int(fault.pick * len(victims))] if victims else None
            hit = False
            if victim is not None:
                with contextlib.suppress(ProcessLookupError):
                    hit = await self._hurt(fault, victim)
            if hit or began > give_up:
                name = f"{fault.role.value} {victim}" if hit else ""
                return Injected(fault, round(began, 2), round(self._now(), 2), name)
            await asyncio.sleep(0.2)

    def _victims(self, role: Role) -> list[int]:
        if role is Role.BROKER:
            return [self._broker.pid] if self._broker.pid is not None else []
        return pids_of(self._graph, role)

    async def _hurt(self, fault: Fault, pid: int) -> bool:
        async with contextlib.AsyncExitStack() as stack:
            match fault.kind:
                case Kind.KILL:
                    signals.send(pid, signal.SIGKILL)
                case Kind.TERMINATE:
                    signals.send(pid, signal.SIGTERM)
                case Kind.STOP:
                    stack.enter_context(signals.stopped(pid))
                case Kind.DESCRIPTORS:
                    stack.enter_context(limits.few_descriptors(pid))
                case Kind.MEMORY:
                    stack.enter_context(limits.little_memory(pid))
                case Kind.FLOOD:
                    await stack.enter_async_context(flood.idle_connections(listening_ports(pid)))
                case Kind.DISK_FLIP | Kind.DISK_TRUNCATE | Kind.DISK_FULL:
                    if not self._hurt_disk(fault, pid, stack):
                        return False
            await asyncio.sleep(fault.seconds)
        return True

    def _hurt_disk(self, fault: Fault, pid: int, stack: contextlib.AsyncExitStack) -> bool:
        assert self._disk_path is not None
        path = disk.file_of(pid, self._disk_path)
        if path is None:
            return False
        if fault.kind is Kind.DISK_FLIP:
            disk.flip(path, random.Random(fault.pick))
        elif fault.kind is Kind.DISK_TRUNCATE:
            disk.truncate(path)
        else:
            stack.enter_context(disk.full(self._disk_path, path))
        return True
