"""Prefill a file of prompts: JSON lines in, JSON lines out, with progress."""

from __future__ import annotations

import time
from concurrent.futures import Future

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.client.file_run import FileRun, result_record, write_all
from wavepp_worker.runtime.client.prompt_feed import PromptFeed
from wavepp_worker.runtime.client.prompt_lines import PromptSource
from wavepp_worker.runtime.client.prompt_progress import PromptProgress
from wavepp_worker.runtime.client.result_lines import ResultLines
from wavepp_worker.runtime.client.stop_signals import StopSignals
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.runtime.protocol.requests import PrefillResult

LOOKED_AT = 128
"""Prompts submitted beyond those that run or hold a lease: as many as admission chooses from under pressure."""


def run_file(
    config: EngineConfig,
    source: PromptSource[list[int] | str],
    results: ResultLines,
    *,
    begun: float,
    shown: bool,
) -> FileRun:
    """Prefill every prompt in order; each result is written once it and those before it are there.

    To be called by the main thread: SIGINT and SIGTERM end it early, with what is written so far.

    Args:
        begun: when the start began, on the monotonic clock.
        shown: show progress on standard error.

    Raises:
        ConfigError: the configuration is wrong.
        EngineDead: the engine failed to start or died; says, as all of the following do, how many results are written.
        WaveppError: the results cannot be written.
        AuditError: something leaked.
        BrokenPipeError: nobody reads the results any more.
    """
    engine = PrefillEngine(config)

    def submit(prompt: list[int] | str) -> Future[PrefillResult]:
        return engine.submit(prompt, top_logprobs=config.top_logprobs)

    feed = PromptFeed(source.lines, submit, 2 * config.max_num_seqs + LOOKED_AT)
    run = FileRun(total=source.prompts)

    def stop() -> None:
        engine.close()
        feed.close()

    with StopSignals(stop) as signals:
        try:
            with PromptProgress(source, shown=shown) as progress, engine:
                run.start_seconds = time.monotonic() - begun
                progress.begin()
                write_all(feed, result_record, results, progress, run)
                engine.audit()
        except ConfigError:
            raise
        except WaveppError as error:
            if not signals.received:
                raise type(error)(f"{error}; {run.written()} are written") from error
        run.signal = signals.received
    return run
