"""The engine's end of its ranks: spawns them, sends commands, and hands their events to one callback."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.runtime.client.rank_layout import rank_configs
from wavepp_worker.runtime.client.rank_processes import RankProcesses
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Command, Stop
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.events import Event
from wavepp_worker.runtime.protocol.outbox import Outbox
from wavepp_worker.runtime.trace.perfetto import write_timeline
from wavepp_worker.runtime.trace.recording import read_recording

CLOSE_SECONDS = 10.0
TICK_SECONDS = 0.1

logger = logging.getLogger(__name__)


class RankLink:
    """Rank processes and the sockets to them, under a private directory that goes with them."""

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        on_event: Callable[[Event], None],
        on_tick: Callable[[], None],
        on_exit: Callable[[int, int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Spawn the ranks.

        Args:
            on_event: gets every event, from the link's thread.
            on_tick: called about ten times a second from the same thread.
            on_exit: ``(rank, exit code)`` of the first rank that exits unasked.
            on_failure: told once if an event could not be read or handled; no event is handled afterwards.

        Raises:
            ConfigError: the partition or the hand-off cannot work.
        """
        self._on_event = on_event
        self._on_tick = on_tick
        self._on_failure = on_failure
        self._closing = threading.Event()
        self._timeline = config.timeline
        self._run_dir = Path(tempfile.mkdtemp(prefix="wavepp-"))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._configs = configs = rank_configs(config, info, self._run_dir)
            events = self._context.socket(zmq.PULL)
            events.set_hwm(0)
            events.bind(configs[0].events)
            self._commands = Outbox(self._context, configs[0].commands)
            self._processes = RankProcesses(configs, on_exit)
        except BaseException:
            self._context.destroy(linger=0)
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise
        self._thread = threading.Thread(target=self._serve, args=(events,), name="engine", daemon=True)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        """Process ids in rank order."""
        return self._processes.pids

    def send(self, command: Command) -> None:
        """Queue a command for rank 0."""
        self._commands.send(command)

    def kill(self) -> None:
        """End all ranks at once."""
        self._processes.kill()

    def close(self, graceful: bool) -> None:
        """Stop the ranks, by asking if ``graceful``, and release everything; bounded in time."""
        self._processes.expect_exit()
        if graceful:
            self.send(Stop())
        self._processes.close(CLOSE_SECONDS if graceful else 0.0)
        self._closing.set()
        self._commands.close()
        self._thread.join(CLOSE_SECONDS)
        self._context.destroy(linger=0)
        if self._timeline is not None and self._run_dir.exists():
            self._write_timeline(self._timeline)
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def _write_timeline(self, path: Path) -> None:
        try:
            ranks = [read_recording(Path(each.timeline), each.rank) for each in self._configs]
            if any(each.slices for each in ranks):
                write_timeline(path, ranks)
        except OSError as error:
            logger.warning("the timeline could not be written to %s: %s", path, error)

    def _serve(self, events: zmq.Socket[bytes]) -> None:
        next_tick = 0.0
        try:
            while not self._closing.is_set():
                if events.poll(int(1000 * TICK_SECONDS)):
                    self._on_event(Codec.event.decode(events.recv()))
                if time.monotonic() > next_tick:
                    self._on_tick()
                    next_tick = time.monotonic() + TICK_SECONDS
        except Exception as error:
            self._on_failure(error)
        finally:
            events.close(linger=0)
