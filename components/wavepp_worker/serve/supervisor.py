"""Brings a plan up, says when it is ready, and takes it down in order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from wavepp_worker.serve.fleet import Fleet
from wavepp_worker.serve.frontend_watch import FrontendWatch
from wavepp_worker.serve.health import known_workers, listed_models
from wavepp_worker.serve.health_watch import KeepLimits
from wavepp_worker.serve.keeper import CONFIG_EXIT_CODE, Keeper, StartFailed
from wavepp_worker.serve.launch_plan import LaunchPlan
from wavepp_worker.serve.log import Log
from wavepp_worker.serve.planner_link import PlannerLink
from wavepp_worker.serve.run_dir import RunDir
from wavepp_worker.serve.scaler import Scaler
from wavepp_worker.serve.stop_ends import stop_ends

_POLL_SECONDS = 0.1
_FRONTEND_SECONDS = 5.0
_TEMPLATE_ERROR = re.compile(r"prompt_formatter_from_mdc: ([^\"]+)")


class Supervisor:
    """All processes of one run."""

    def __init__(
        self,
        plan: LaunchPlan,
        environment: Mapping[str, str],
        run_dir: RunDir,
        log: Log,
        limits: KeepLimits,
    ) -> None:
        """``environment`` is what every process gets before its own variables; ``limits`` are each process's."""
        self._start_seconds = limits.start_seconds
        self._stop_times = limits.stop
        self._stop_ends = stop_ends(plan.processes, environment, limits.stop)
        self._plan = plan
        self._run_dir = run_dir
        self._log = log
        self._fleet = Fleet(environment, plan.discovery, run_dir, log, limits, self._write_state)
        self._link: PlannerLink | None = None
        self._scaler: Scaler | None = None
        if plan.replicas:
            self._link = PlannerLink(plan.namespace, environment, log)
            self._scaler = Scaler(plan, self._fleet, self._link, log, limits, self._write_state)
        self._model = plan.model
        self._is_ready = False
        self._stop = asyncio.Event()
        self._killed = False
        self._began = time.monotonic()
        for process in plan.processes:
            self._fleet.add(process)

    @property
    def _keepers(self) -> list[Keeper]:
        return self._fleet.keepers

    async def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP; when it returns or raises, every process is gone.

        Raises:
            StartFailed: a configuration was refused, or the time ran out.
        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        self._write_state()
        for keeper in self._keepers:
            self._fleet.start(keeper)
            self._fleet.rely_on(keeper)
        stop = asyncio.create_task(self._stop.wait())
        tasks = [stop, asyncio.create_task(self._announce(self._start_seconds))]
        try:
            # The announcement goes on as long as the run does, or fails.
            waiting: set[asyncio.Future[Any]] = {self._fleet.failure, *tasks}
            while not stop.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
        except StartFailed:
            self._log.reveal()
            raise
        finally:
            self._log.settled = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop_all()
            await self._fleet.all_ended()
            self._fleet.failure.cancel()
            for number in signals:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            times, alone = self._stop_times, self._plan.base_url is None
            self._log.say(
                f"{number.name}: stopping, requests have {times.requests if alone else times.answers} s to end, "
                f"everything ends within {max(self._stop_ends.values()):.0f} s; once more to kill everything at once",
                "bold",
            )
            self._stop.set()
            return
        if not self._killed:
            self._log.say("killing everything", "bold red")
        self._killed = True
        for keeper in self._keepers:
            keeper.kill()

    async def _announce(self, start_seconds: float) -> None:
        deadline = self._began + start_seconds
        with self._log.progress() as show:
            while missing := await self._missing():
                show(f"waiting for {missing}")
                if (refusal := self._refused_template()) is not None:
                    raise StartFailed(refusal, CONFIG_EXIT_CODE)
                if time.monotonic() > deadline:
                    raise StartFailed(self._too_late(start_seconds, missing))
                await asyncio.sleep(_POLL_SECONDS)
        self._is_ready = self._log.settled = True
        self._write_state()
        replicas = Counter(process.service for process in self._plan.processes)
        running = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in replicas.items())
        seconds = time.monotonic() - self._began
        self._log.ready(seconds, self._state(), running, chats=self._plan.chats)
        await asyncio.gather(self._watch_frontend(), *self._follow_planner())

    def _follow_planner(self) -> Iterator[Coroutine[Any, Any, None]]:
        if self._link is not None and self._scaler is not None:
            yield self._link.run()
            yield self._scaler.run()

    async def _watch_frontend(self) -> None:
        frontend = next((each for each in self._keepers if each.process.kind == "frontend"), None)
        if frontend is None or self._model is None:
            return
        watch = FrontendWatch()
        while True:
            await asyncio.sleep(_FRONTEND_SECONDS)
            ready = all(keeper.ready for keeper in self._keepers)
            listed = ready and self._model in await listed_models(frontend.process.url)
            if watch.blind(ready, listed, time.monotonic()):
                frontend.renew("finds no worker, though all are there,")

    async def _missing(self) -> str:
        """What the graph still waits for; empty when it is ready."""
        down = [keeper.process.label for keeper in self._keepers if not keeper.ready]
        if down:
            return ", ".join(down)
        workers = sum(process.kind == "worker" for process in self._plan.processes)
        url = self._plan.base_url
        if url is None or not workers:
            return ""
        models = await listed_models(url)
        if not models or (self._model is not None and self._model not in models):
            return f"the frontend to list {self._model or 'a model'}"
        self._model = self._model or models[0]
        if await known_workers(url, self._plan.endpoints) < workers:
            return "the frontend to find all workers"
        return ""

    def _refused_template(self) -> str | None:
        """Dynamo's frontend says in its log alone that it will never list a model for want of a chat template."""
        lines = (
            line
            for keeper in self._keepers
            if keeper.process.kind == "frontend"
            for line in keeper.last_lines
        )
        found = next(filter(None, map(_TEMPLATE_ERROR.search, lines)), None)
        return found and (
            f"model: Dynamo's frontend cannot use the model's chat template ({found[1].strip()}); mend it, or give all "
            "workers another as custom_jinja_template"
        )

    def _too_late(self, seconds: float, missing: str) -> str:
        words = [
            f"\n  {keeper.process.label} said last: {keeper.last_lines[-1]}"
            for keeper in self._keepers
            if not keeper.ready and keeper.last_lines
        ]
        return (
            f"not ready after {seconds:.0f} s (--start-timeout): still waiting for {missing}{''.join(words)}"
        )

    async def _stop_all(self) -> None:
        for keeper in self._keepers:
            keeper.no_restart()
        began = time.monotonic()
        for service, seconds in self._stop_ends.items():
            of_service = [keeper for keeper in self._keepers if keeper.process.service == service]
            if not self._killed:
                self._log.say(f"stopping {service}")
            left = max(0.0, began + seconds - time.monotonic())
            await asyncio.gather(*(keeper.stop(left) for keeper in of_service))
        self._log.say("everything is killed" if self._killed else "stopped")

    def _write_state(self) -> None:
        """Tell others; that they cannot be told, as on a full disk, is no reason to end anything."""
        try:
            self._run_dir.write_state(self._state())
        except OSError as error:
            self._log.say(f"state.json cannot be written, and is out of date: {error}", "red")

    def _queue(self) -> dict[str, str] | None:
        """What reaches the server of the queue beside what is in everybody's environment; None if nobody takes jobs."""
        if not self._plan.takes_jobs:
            return None
        return {} if self._plan.queue is None else self._plan.queue.environment()

    def _state(self) -> dict[str, Any]:
        return {
            "graph": self._plan.graph,
            "pid": os.getpid(),
            "ready": self._is_ready,
            "base_url": self._plan.base_url,
            "model": self._model,
            "namespace": self._plan.namespace,
            "queue": self._queue(),
            "planner": None if self._scaler is None else self._scaler.state(),
            "notes": list(self._plan.notes),
            "processes": [
                {
                    "service": keeper.process.service,
                    "replica": keeper.process.replica,
                    "kind": keeper.process.kind,
                    "url": keeper.process.url,
                    "pid": keeper.pid,
                    "port": keeper.process.port,
                    "ready": keeper.ready,
                    "paused": keeper.paused,
                    "restarts": keeper.restarts,
                    "about": msgspec.to_builtins(keeper.about),
                }
                for keeper in self._keepers
            ],
        }
