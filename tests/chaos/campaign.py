"""One run over one graph: start it, ask without a pause while faults come, let it recover, and look what is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.chaos.broker_process import BrokerProcess
from tests.chaos.client import Client
from tests.chaos.display import Display
from tests.chaos.explain import troubled
from tests.chaos.faults import Fault, Injected, Kind
from tests.chaos.injectors.disk import small_disk
from tests.chaos.injectors.injector import Injector
from tests.chaos.leaks import Left
from tests.chaos.load import MOST_AT_ONCE, Load
from tests.chaos.monitor import files_of, monitored, ready_again, shared_memory
from tests.chaos.processes import holdings
from tests.chaos.queue_jobs import queue_jobs
from tests.chaos.record import Record
from tests.chaos.settings import DISK_MEBIBYTES, Setting
from tests.chaos.workload import Case, draw_asks
from tests.support.graph_process import REPOSITORY, RunningGraph, start_graph
from tests.support.served_graph import ServedGraph

START_SECONDS = 300.0
RECOVERY_SECONDS = 180.0
"""The longest pause before a restart, a start on a busy machine, and some room."""
REST_SECONDS = 6.0
STOP_SECONDS = 120.0


class Campaign:
    """One setting, once."""

    def __init__(
        self,
        setting: Setting,
        model: Path,
        cases: Sequence[Case],
        schedule: Sequence[Fault],
        *,
        seed: int,
        seconds: float,
        rate: float,
        checks: int,
        display: Display,
        salted: float = 0.0,
        least: int = 0,
    ) -> None:
        """
        Args:
            cases: what is asked.
            schedule: what is done to it meanwhile.
            seconds: of load.
            rate: requests a second.
            checks: how many cases have to be answered rightly before the first fault and after the last.
            display: shows how it goes.
            salted: the share of requests that share no cache with others.
            least: requests that are sent, even if that takes longer than ``seconds``.
        """
        self.record = Record(setting.name, seed, seconds)
        self.log = ""
        """What the launcher printed."""
        self._setting = setting
        self._model = model
        self._cases = cases
        self._schedule = list(schedule)
        self._rate = rate
        self._checks = checks
        self._display = display
        self._salted = salted
        self._least = least
        self._zero = 0.0
        self._stuck: list[int] = []

    def run(self) -> Record:
        """Everything; bounded in time, and nothing of the campaign's own is left behind.

        Raises:
            AssertionError: the graph did not start.
        """
        record, disk_path = self.record, Path(tempfile.mkdtemp(prefix="chaos-disk-"))
        record.before = Left(shared_memory=shared_memory())
        try:
            with small_disk(disk_path, DISK_MEBIBYTES) as mounted, BrokerProcess() as broker:
                if not mounted:
                    self._schedule = [each for each in self._schedule if each.kind is not Kind.DISK_FULL]
                self._display.phase(f"starting {self._setting.name}")
                words = (*self._setting.command(self._model, disk_path), f"--port={_free_port()}")
                with start_graph(
                    self._setting.graph, *words, env=broker.environment, cwd=REPOSITORY
                ) as graph:
                    try:
                        graph.wait_ready(START_SECONDS)
                        asyncio.run(self._hurt(graph, Injector(graph, broker, disk_path, self._now)))
                        self._stop(graph)
                    finally:
                        self.log = graph.log()
        finally:
            shutil.rmtree(disk_path, ignore_errors=True)
        record.after = Left(shared_memory=shared_memory(), processes=self._stuck)
        return record

    def _now(self) -> float:
        return time.monotonic() - self._zero

    async def _hurt(self, graph: RunningGraph, injector: Injector) -> None:
        record, display, checked = self.record, self._display, self._cases[: self._checks]
        async with Client(graph.base_url, graph.model, self._now) as client:
            load = Load(client, record, display, self._now)
            display.phase("warming up")
            await load.all_right(checked, "before any fault")
            # As many as ever wait: the connections that a frontend keeps for the next ones are no leak.
            many = [self._cases[i % len(self._cases)] for i in range(MOST_AT_ONCE)]
            await load.all_right(many, "before any fault, many at once")
            await asyncio.sleep(REST_SECONDS)
            record.first, files = holdings(graph, 0.0), files_of(graph)
            self._zero = time.monotonic()
            display.phase("load and faults", record.seconds)
            asks = draw_asks(record.seed, self._rate, self._cases, self._salted)
            async with monitored(graph, record, display, self._now):
                faults = [asyncio.create_task(self._fault(injector, fault)) for fault in self._schedule]
                await asyncio.gather(load.run(asks, record.seconds, self._least), *faults)
                display.phase("recovering")
                if not await ready_again(graph, RECOVERY_SECONDS):
                    record.broken.append(f"not all is ready {RECOVERY_SECONDS:.0f} s after the last fault")
            ends = [end for _, end in troubled(record.injected, record.health)]
            await asyncio.sleep(max(ends, default=0.0) - self._now())
            await load.all_right(checked, "after the last fault")
        await asyncio.sleep(REST_SECONDS)
        display.phase("looking what is left")
        record.last = holdings(graph, self._now())
        more = files_of(graph) - files
        if len(files_of(graph)) > len(files):
            record.broken.append(f"the run's directory has {len(more)} new files: {', '.join(sorted(more))}")
        await asyncio.to_thread(self._audit, graph)
        if (jobs := await asyncio.to_thread(queue_jobs, graph)) is not None:
            record.jobs, record.queued = jobs

    async def _fault(self, injector: Injector, fault: Fault) -> Injected:
        await asyncio.sleep(max(0.0, fault.at - self._now()))
        self._display.fault(fault)
        injected = await injector.inject(fault)
        self.record.injected.append(injected)
        self._display.injected(injected)
        return injected

    def _audit(self, graph: RunningGraph) -> None:
        try:
            with httpx.Client(timeout=60, trust_env=False) as http:
                self.record.audited = ServedGraph(graph, http).audit()
        except (AssertionError, httpx.HTTPError, ValueError) as error:
            self.record.broken.append(f"the books do not balance: {error!r}")

    def _stop(self, graph: RunningGraph) -> None:
        try:
            code = graph.stop(seconds=STOP_SECONDS)
        except AssertionError as error:
            self.record.broken.append(f"it did not stop: {str(error)[:300]}")
            self._stuck = graph.pids()
        else:
            if code != 0:
                self.record.broken.append(f"dynamo serve ended with exit code {code}")


def _free_port() -> int:
    """One that no outgoing connection is given while the frontend is down, nor another graph by default."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
