"""Takes jobs from a queue for one replica: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import datetime
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import islice
from typing import Any

from wavepp_worker.intake.config import IntakeConfig
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.job_consumers import ConsumerLoad, JobConsumers
from wavepp_worker.intake.job_ledger import JobLedger
from wavepp_worker.intake.job_runner import JobRunner
from wavepp_worker.intake.loop_end import end_loop
from wavepp_worker.intake.membership import Membership
from wavepp_worker.intake.names import QueueName, replica_of, token_of
from wavepp_worker.intake.opening import open_soon
from wavepp_worker.intake.prefills import Prefills
from wavepp_worker.intake.queue_peers import BACK_SECONDS, QueuePeers
from wavepp_worker.intake.queued_job import QueuedJob, queued_job
from wavepp_worker.intake.server_address import connect
from wavepp_worker.intake.shares import room_for, shares
from wavepp_worker.intake.streams import QueueStreams
from wavepp_worker.intake.taken_job import TakenJob
from wavepp_worker.nats_variables import nats_environment

logger = logging.getLogger(__name__)

_MEANWHILE = "; until then this worker takes no jobs"
ASK_SECONDS = 2.0
"""How long one request for jobs waits at the server."""
LOOK_SECONDS = 0.02
"""How often a replica that has no room looks whether it has."""
TAKE_SECONDS = 2.0
"""How long a job waits for the replica that it addresses, until any may have it."""
SWEEP_SECONDS = 0.5
"""How often a replica looks for such jobs, and how long the queue is."""
MOST_ADOPTED = 100
"""Replicas that jobs address and that never were, of which the jobs are looked at anew each time."""
RETRY_SECONDS = 0.5
HAND_BACK_SECONDS = 3.0
QUEUED_SECONDS = 2.0
"""That the server has to say where a job is."""
"""For the last words about jobs when a replica stops."""


class Intake:
    """The jobs of one replica. ``start`` and ``close`` may block; all methods are thread-safe."""

    def __init__(self, prefills: Prefills, config: IntakeConfig, name: QueueName) -> None:
        """Nothing is started yet; where the server is, is read from the environment now."""
        self.counts = IntakeCounts()
        self._environment = nats_environment()
        self._prefills = prefills
        self._config = config
        self._name = name
        self._taken: dict[tuple[str, int], TakenJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking: list[asyncio.Task[None]] = []
        self._taking = True
        self._paused = False
        self._closed = False
        self._starting = threading.Lock()
        self._begun: Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="intake", daemon=True)
        self._connection: Any = None

    def start(self, replica: str) -> None:
        """Take jobs from now on, or from when the server is reached: that is not waited for longer than 3 s.

        Where it is, replicas that may take jobs with other weights are waited for, 30 s more at most. Whoever tells it
        to stop meanwhile ends that: it returns, and takes no jobs.

        Args:
            replica: what senders address this one by; no other has it.

        Raises:
            ConfigError: the server has no JetStream, or there can be none; or replicas with other weights take jobs of
                this queue.
        """
        with self._starting:
            if not self._taking:
                return
            self._thread.start()
            self._begun = self._call(self._begin(replica))
        with suppress(CancelledError):
            self._begun.result()

    def stop_taking(self) -> None:
        """Take no more jobs; those that were taken go on."""
        with self._starting:
            self._taking = False
            if self._begun is not None and not self._closed:
                self._begun.cancel()
                self._loop.call_soon_threadsafe(self._stop_opening)

    def pause(self, *, paused: bool) -> None:
        """Take no more jobs while paused; those that were taken go on."""
        self._paused = paused

    def queue(self) -> dict[str, int]:
        """How many jobs of its queue no replica has taken, by what the queue is called at its server."""
        return {self._name.root: self.counts.queued}

    def queued(self, request_id: str) -> QueuedJob | None:
        """Where the job of an id is that is not over, as the queue's server says within 2 s; None if it does not."""
        if self._closed or not self._asking:
            return None
        work = asyncio.wait_for(
            queued_job(self._streams, JobLedger(self._streams), request_id), QUEUED_SECONDS
        )
        asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        with suppress(Exception):
            return asked.result(QUEUED_SECONDS + 1.0)
        return None

    def idle(self) -> bool:
        """Whether no job is left here."""
        return not self._taken

    def close(self) -> None:
        """Hand back what is not over, for others to run, and stop; idempotent, and bounded in time."""
        if self._closed:
            return
        self.stop_taking()
        self._closed = True
        if self._thread.is_alive():
            with suppress(Exception):
                self._call(self._end()).result(HAND_BACK_SECONDS + 2.0)
        end_loop(self._loop, self._thread)

    def _call(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _begin(self, replica: str) -> None:
        self._replica = replica
        self._settling = asyncio.Event()
        beginning = asyncio.current_task()
        assert beginning is not None
        self._keep_until_done(beginning)
        self._opening = await open_soon(self._open, _MEANWHILE, self._settling)
        self._keep_until_done(self._opening)
        if not self._taking:
            self._stop_opening()

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    async def _open(self) -> None:
        config, name, replica = self._config, self._name, self._replica
        if self._connection is None:
            begun = time.monotonic()
            self._connection = await connect(
                config.nats_server, self._environment, f"wavepp {replica}", None, _MEANWHILE
            )
            if time.monotonic() - begun > BACK_SECONDS:
                # Others have waited as well, and cannot be asked before they are back.
                await asyncio.sleep(BACK_SECONDS)
            connection, silence = self._connection, config.intake_silence
            self._streams = QueueStreams(connection, name)
            self._consumers = JobConsumers(connection, name)
            model_id = self._prefills.engine.info.model_id
            self._peers = QueuePeers(
                connection, name, self._consumers, replica, model_id, silence, lambda: self._taking
            )
        await self._make_queue()
        self._settling.set()
        await self._peers.join()
        self._membership = Membership(self._peers, config.intake_silence, self._make_queue, _MEANWHILE)
        self._runner = JobRunner(self._streams, self._prefills, config, replica, self.counts)
        await self._connection.subscribe(name.cancel("*"), cb=self._on_cancel)
        self._asking = [self._spawn(each) for each in (self._take(replica), self._take(None), self._sweep())]
        self._spawn(self._keep())
        self._spawn(self._membership.watch())
        logger.info("takes jobs of queue %s as %s", name.root, replica)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._keep_until_done(task)
        return task

    def _keep_until_done(self, task: asyncio.Task[None]) -> None:
        """So that who stops can cancel it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        # What is handed back while requests for jobs wait at the server would come back here, where nobody takes it.
        for asking in self._asking:
            asking.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        if self._asking:
            with suppress(Exception):
                await asyncio.wait_for(self._connection.flush(), 1.0)
        for taken in self._taken.values():
            taken.handing_back = True
        end = time.monotonic() + HAND_BACK_SECONDS
        while self._taken and time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._connection.flush(), 1.0)
            # Also where the server does not answer, as its tasks would be left in a closed loop.
            with suppress(Exception):
                await asyncio.wait_for(self._connection.close(), 1.0)

    async def _take(self, replica: str | None) -> None:
        """Ask for jobs, those that address this replica or anybody's, as long as there is room."""
        turn = 0
        while self._taking:
            turn += 1
            try:
                own, anybodys = shares(self._room(), turn)
                count = anybodys if replica is None else own
                if not count:
                    await asyncio.sleep(LOOK_SECONDS)
                    continue
                async for message in self._consumers.take(replica, count, ASK_SECONDS):
                    self._enter(message)
            except Exception as error:
                logger.debug("no jobs can be asked for: %s", error)
                await self._make_anew()

    async def _make_anew(self) -> None:
        """The server is not reached, or came back without what there was."""
        await asyncio.sleep(RETRY_SECONDS)
        with suppress(Exception):
            await self._make_queue()

    async def _make_queue(self) -> None:
        await self._streams.ensure()
        for each in (None, self._replica):
            await self._consumers.ensure(each, self._config.intake_silence)

    def _room(self) -> int:
        self.counts.held = len(self._taken)
        self.counts.waiting = sum(not taken.admitted for taken in self._taken.values())
        queued = self._prefills.engine.stats().queued
        if self._paused or not self._membership.holds:
            return 0
        texts = sum(taken.as_text for taken in self._taken.values())
        return room_for(self._config.intake_ahead, self.counts.waiting, queued, self.counts.held, texts)

    def _enter(self, message: Any) -> None:
        taken = TakenJob(message)
        if self._paused or not (self._taking and self._membership.holds):
            self._spawn(message.nak())
            return
        if taken.key in self._taken:
            # Delivered again while it is here: its signs of life were late, and it goes on.
            return
        self._taken[taken.key] = taken
        self._spawn(self._run(taken))

    async def _run(self, taken: TakenJob) -> None:
        try:
            await self._runner.run(taken)
        except Exception:
            logger.exception("job %s is delivered again", taken.token)
        finally:
            del self._taken[taken.key]

    async def _on_cancel(self, message: Any) -> None:
        job = token_of(message.subject)
        for taken in self._taken.values():
            if taken.token == job:
                taken.unwanted = taken.unwanted or "cancelled"

    async def _keep(self) -> None:
        """Say of each job, three times as often as needed, that it is worked on."""
        while True:
            await asyncio.sleep(self._config.intake_silence / 3)
            for taken in list(self._taken.values()):
                with suppress(Exception):
                    await taken.message.in_progress()

    async def _sweep(self) -> None:
        """Take what addresses another replica that does not take it, and see how long the queue is."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                loads = await self._consumers.loads()
                await self._adopt(loads)
                self.counts.queued = sum(load.waiting for load in loads)
                for load in loads:
                    if self._taking and load.replica not in (None, self._replica):
                        await self._steal(load)
            except Exception as error:
                logger.debug("the queue cannot be looked at: %s", error)

    async def _adopt(self, loads: list[ConsumerLoad]) -> None:
        """Jobs may address a replica that never was."""
        if await self._streams.jobs() <= sum(load.waiting + load.taken for load in loads):
            return
        known, strangers = {load.replica for load in loads}, set()
        for subject in await self._streams.addressed():
            replica = replica_of(subject)
            if replica is None:
                await self._runner.refuse(subject)
            elif replica not in known:
                strangers.add(replica)
        try:
            for replica in islice(strangers, MOST_ADOPTED):
                await self._consumers.ensure(replica, self._config.intake_silence)
        except Exception as error:
            # There may be too many of them; those that are taken make room.
            logger.debug("jobs for replicas that never were have to wait: %s", error)

    async def _steal(self, load: ConsumerLoad) -> None:
        assert load.replica is not None
        room = self._room()
        if not room or not (load.waiting or load.taken):
            return
        if load.waiting:
            sent = await self._streams.sent_at(load.replica, load.next_number)
            now = datetime.datetime.now(datetime.timezone.utc)
            if sent is None or (now - sent).total_seconds() < TAKE_SECONDS:
                return
        # Where none waits, there may be some that their replica has not been heard of about.
        async for message in self._consumers.take(load.replica, room):
            self.counts.stolen += 1
            self._enter(message)
