"""One pipeline rank: a process whose main thread is the LOOP thread, with a WAVE thread beside it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.liveness.watchdog import Watchdog
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.protocol.events import Alive, RankFailed, RankReady
from wavepp_worker.runtime.protocol.outbox import Outbox
from wavepp_worker.runtime.protocol.rank_config import IGNORED_SIGNALS, RankConfig
from wavepp_worker.runtime.rank.build import Context, load_device, make_rank, make_threads
from wavepp_worker.runtime.rank.garbage_collection import collect_young_only
from wavepp_worker.runtime.rank.log_lines import log_as_lines
from wavepp_worker.runtime.trace.recorder import Recorder

GOODBYE_SECONDS = 2.0
"""How long a rank that failed may take to send off why."""


def run_rank(config: RankConfig) -> None:
    """Load this rank's layers, connect, report ready, and serve until told to stop."""
    context: Context = zmq.Context()
    events = Outbox(context, config.events)
    recorder = Recorder()
    if config.timeline:
        recorder.start(Path(config.timeline))

    def close() -> None:
        events.close()
        recorder.stop()
        context.term()

    failing = threading.Semaphore()

    def fail(error: BaseException) -> None:
        """The rank cannot go on: say why, and leave at once, so that nobody waits for it."""
        if not failing.acquire(blocking=False):
            # What the first failure brings down is not worth a word.
            time.sleep(2 * GOODBYE_SECONDS)
            os._exit(1)
        if not isinstance(error, WaveppError):
            traceback.print_exception(error)
        wrong_config = isinstance(error, ConfigError)
        reason = str(error) if wrong_config else f"{type(error).__name__}: {error}"
        events.send(RankFailed(rank=config.rank, reason=reason, config=wrong_config))
        # What another thread hangs in may hold any of this up.
        goodbye = threading.Thread(target=close, daemon=True)
        goodbye.start()
        goodbye.join(GOODBYE_SECONDS)
        os._exit(1)

    try:
        _serve(config, context, events, fail, recorder)
    except Exception as error:
        fail(error)
    close()


def _serve(
    config: RankConfig,
    context: Context,
    events: Outbox,
    fail: Callable[[BaseException], None],
    recorder: Recorder,
) -> None:
    gate, stopping = WaveGate(config.wait), threading.Event()
    device = load_device(config)
    parts = make_rank(config, device, events, gate, recorder)
    watchdog = Watchdog(fail, lambda: events.send(Alive(rank=config.rank)))
    threads = make_threads(config, context, device, parts, events, gate, recorder.timeline, fail, watchdog)

    def run_wave() -> None:
        try:
            threads.wave.run(stopping)
        except Exception as error:
            fail(error)

    wave = threading.Thread(target=run_wave, name="WAVE", daemon=True)
    wave.start()
    collect_young_only()
    source = parts.lifecycle.source
    events.send(RankReady(rank=config.rank, handoff=source.address if source is not None else None))
    watchdog.start()
    threads.loop.run(stopping)
    watchdog.close()
    threads.executor.close()
    wave.join(config.wait)
    if source is not None:
        source.close()
    device.tiers.run(parts.cache.flush())
    device.tiers.close()
    for socket in threads.sockets:
        socket.close()


def _die_with_parent() -> None:
    """The engine holds the other end of standard input; when it goes, however it goes, so does this rank."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(2)


def main() -> None:
    """Entry point of the process: a ``RankConfig`` as one JSON line on standard input."""
    # A fault in native code prints where every thread was.
    faulthandler.enable()
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankConfig)
    log_as_lines(config.rank, os.environ)
    threading.Thread(target=_die_with_parent, name="lifeline", daemon=True).start()
    run_rank(config)


if __name__ == "__main__":
    main()
