"""The engine's end of its ranks: spawns them, sends commands, and tells one listener what they do."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path
from typing import Protocol

import zmq

from wavepp_worker.block_keys import BlockKeyMaker
from wavepp_worker.errors import StepTimeout
from wavepp_worker.liveness.watchdog import Watchdog
from wavepp_worker.model.model_info import ModelInfo
from wavepp_worker.runtime.client.key_secret import key_secret
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.client.rank_processes import RankProcesses
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.commands import Command, Stop
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.events import Event
from wavepp_worker.runtime.protocol.outbox import Outbox
from wavepp_worker.runtime.trace.perfetto import write_timeline
from wavepp_worker.runtime.trace.recording import read_recording
from wavepp_worker.socket_directory import make_socket_directory

CLOSE_SECONDS = 10.0
TICK_SECONDS = 0.1

logger = logging.getLogger(__name__)


class RankListener(Protocol):
    """Who is told what the ranks do; all but ``on_exit`` and ``on_hang`` come from the link's thread."""

    def on_event(self, event: Event) -> None:
        """A rank reports."""

    def on_tick(self) -> None:
        """About a tenth of a second has passed."""

    def on_exit(self, rank: int, reason: str) -> None:
        """The first rank has exited unasked, for ``reason``; comes once, from the thread that watches processes."""

    def on_hang(self, error: StepTimeout) -> None:
        """The link's thread does not get on; comes once, from the watchdog's thread."""

    def on_failure(self, error: Exception) -> None:
        """An event could not be read or handled; comes once, and no event is handled afterwards."""


class RankLink:
    """Rank processes and the sockets to them, under a private directory that goes with them.

    Attributes:
        keys: makes the keys of the blocks that they cache.
        processes: the ranks.
    """

    def __init__(self, config: EngineConfig, info: ModelInfo, listener: RankListener) -> None:
        """Spawn the ranks.

        Raises:
            ConfigError: the partition, the hand-off, the disk tier or the temporary directory cannot work.
        """
        self.keys = BlockKeyMaker(key_secret(config), info.model_id, config.block_size)
        self._listener = listener
        self._closing = threading.Event()
        self._timeline = config.timeline
        self._event_seconds = config.wave_timeout
        self._watchdog = Watchdog(listener.on_hang)
        self._run_dir = make_socket_directory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._configs = configs = rank_configs(config, info, self._run_dir, self.keys.secret_id)
            events = self._context.socket(zmq.PULL)
            events.set_hwm(0)
            events.bind(configs[0].events)
            self._commands = Outbox(self._context, configs[0].commands)
            self.processes = RankProcesses(configs, listener.on_exit)
        except BaseException:
            self._context.destroy(linger=0)
            shutil.rmtree(self._run_dir, ignore_errors=True)
            raise
        self._thread = threading.Thread(target=self._serve, args=(events,), name="engine", daemon=True)
        self._thread.start()
        self._watchdog.start()

    def send(self, command: Command) -> None:
        """Queue a command for rank 0."""
        self._commands.send(command)

    def close(self, graceful: bool) -> None:
        """Stop the ranks, by asking if ``graceful``, and release everything; bounded in time."""
        self.processes.expect_exit()
        self._watchdog.close()
        if graceful:
            self.send(Stop())
        self.processes.close(CLOSE_SECONDS if graceful else 0.0)
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
        watched = self._watchdog.watch("engine")
        try:
            while not self._closing.is_set():
                watched.idle()
                arrived = events.poll(int(1000 * TICK_SECONDS))
                watched.busy("what its ranks reported", self._event_seconds)
                if arrived:
                    for part in events.recv_multipart():
                        self._listener.on_event(Codec.event.decode(part))
                if time.monotonic() > next_tick:
                    self._listener.on_tick()
                    next_tick = time.monotonic() + TICK_SECONDS
        except Exception as error:
            self._listener.on_failure(error)
        finally:
            watched.idle()
            events.close(linger=0)
