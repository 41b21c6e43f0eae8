"""Send a file of jobs to a queue: JSON lines in, JSON lines out, with progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from wavepp_worker.errors import ConfigError, InvalidRequest, QueueError, WaveppError
from wavepp_worker.intake.messages import Job, JobResult
from wavepp_worker.intake.prefill_queue import PrefillQueue
from wavepp_worker.intake.served_watch import ServedWatch
from wavepp_worker.runtime.client.file_run import FileRun, result_record, write_all
from wavepp_worker.runtime.client.prompt_feed import Asked, PromptFeed
from wavepp_worker.runtime.client.prompt_lines import PromptSource
from wavepp_worker.runtime.client.prompt_progress import PromptProgress
from wavepp_worker.runtime.client.result_lines import ResultLines
from wavepp_worker.runtime.client.stop_signals import StopSignals


def read_job_line(record: dict[str, Any]) -> Job:
    """The job of a line's object; a number as its id stands for its digits.

    Raises:
        InvalidRequest: it is none; says why.
    """
    identity = record["id"]
    if isinstance(identity, int) and not isinstance(identity, bool):
        record = {**record, "id": str(identity)}
    try:
        job = msgspec.convert(record, Job)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"this is no job: {error}; docs/queue.md says what one is") from error
    job.encode()
    return job


def run_job_file(
    queue: PrefillQueue,
    source: PromptSource[Job],
    results: ResultLines,
    say: Callable[[str], None],
    *,
    ahead: int,
    shown: bool,
    again: bool = False,
) -> FileRun:
    """Send every job in order; each result is written once it and those before it are there.

    To be called by the main thread: SIGINT and SIGTERM end it early, with what is written so far; jobs that were sent
    go on.

    Args:
        queue: not open yet; closed afterwards.
        say: told that no worker takes jobs, for whoever waits.
        ahead: most jobs that are sent and not answered.
        again: run jobs once more that failed before.
        shown: show progress on standard error.

    Raises:
        ConfigError: the server has no JetStream, or there can be none.
        WaveppError: the server is not there, no worker was seen for 300 s, or the results cannot be written; says how
            many are.
        BrokenPipeError: nobody reads the results any more.
    """
    begun = time.monotonic()
    feed = PromptFeed(source.lines, lambda job: queue.submit(job, again=again), ahead)
    run = FileRun(total=source.prompts, what="jobs")
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        queue.close()
        feed.close()

    def record_of(asked: Asked[Job, JobResult]) -> dict[str, Any]:
        record = result_record(asked)
        if stopped:
            raise QueueError(watch.reason or "the queue was closed")
        if "error" not in record:
            assert not isinstance(asked.answer, InvalidRequest)
            answer = asked.answer.result()
            record |= {"replica": answer.replica, "attempt": answer.attempt}
            if answer.handoff is not None:
                record["handoff"] = msgspec.to_builtins(answer.handoff)
        return record

    watch = ServedWatch(queue, say, stop)
    with StopSignals(stop) as signals:
        try:
            with PromptProgress(source, shown=shown) as progress, queue, watch:
                run.start_seconds = time.monotonic() - begun
                progress.begin("jobs")
                write_all(feed, record_of, results, progress, run)
        except ConfigError:
            if not signals.received:
                raise
        except WaveppError as error:
            if not signals.received:
                raise type(error)(f"{error}; {run.written()} are written") from error
        run.signal = signals.received
    return run
