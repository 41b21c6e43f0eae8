"""A queue of prefill jobs for programs: the same calls as an engine's."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
from typing_extensions import Self

from wavepp_worker.errors import InvalidRequest, QueueError, RequestAborted, RequestFailed, RequestTimeout
from wavepp_worker.intake.loop_end import end_loop
from wavepp_worker.intake.messages import Answer, Job, JobResult
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.queue_client import QueueClient
from wavepp_worker.intake.running_queues import choose_queue, running_queues
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.nats_variables import SERVER_VARIABLE, nats_environment

CONNECT_SECONDS = 10.0
DEFAULT_NAMESPACE = "dynamo"
CALL_SECONDS = 150.0
LAST_WORDS_SECONDS = 2.0
"""That who is interrupted waits for the queue to hear of it."""
_NOT_OPEN = "the queue is not open; use it in a with block, or call open() first"

_ERRORS = {
    "invalid": InvalidRequest,
    "deadline": RequestTimeout,
    "cancelled": RequestAborted,
    "failed": RequestFailed,
}

Value = TypeVar("Value")


class PrefillQueue:
    """The queue of one model, whose jobs any of its prefill workers runs, now or later.

    Use it as a context manager, or call ``open`` and ``close``. All methods are thread-safe.
    """

    def __init__(self, model: str, *, namespace: str | None = None, server: str | None = None) -> None:
        """Nothing is connected yet.

        Args:
            model: the name that clients ask for.
            namespace: Dynamo's, of the workers; by default that of a graph that runs here, else ``dynamo``.
            server: URLs of NATS servers, with commas between; by default ``NATS_SERVER`` of the environment, else that
                of the graph of this user that runs here and takes jobs of this model. How to prove oneself to another
                is in the environment as well, as for Dynamo (``NATS_AUTH_USERNAME`` and so on).
        """
        self._found: QueueClient | None = None
        self._model = model
        self._namespace = namespace
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="prefill queue", daemon=True)
        self._closed = False
        self._asked: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, seconds: float = CONNECT_SECONDS) -> None:
        """Connect, within ``seconds``.

        Raises:
            ConfigError: no graph here takes jobs of this model, or several do; the server has no JetStream, or there
                can be none; names what to set.
            QueueError: the server is not there; or it was opened before.
        """
        if self._closed or self._thread.is_alive():
            now = "closed, and stays so; make another PrefillQueue" if self._closed else "open already"
            raise QueueError(f"the queue is {now}")
        self._found = self._find()
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._client.open(seconds), self._loop).result()
        except BaseException:
            self.close()
            raise

    @property
    def _client(self) -> QueueClient:
        """Once it is open."""
        if self._found is None:
            raise QueueError(_NOT_OPEN)
        return self._found

    def _find(self) -> QueueClient:
        environment = nats_environment()
        namespace = self._namespace
        if self._server is None and SERVER_VARIABLE not in environment:
            running = choose_queue(running_queues(), self._model, namespace)
            if running is not None:
                namespace = running.namespace
                environment |= running.environment
        return QueueClient(QueueName(namespace or DEFAULT_NAMESPACE, self._model), self._server, environment)

    def close(self) -> None:
        """Leave; jobs that were sent go on, and who sends their ids again gets their answers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10.0)
        end_loop(self._loop, self._thread)

    def prefill(self, prompt: Job | Sequence[int] | str, *, again: bool = False, **options: Any) -> JobResult:
        """Send one job and wait for its answer; whoever interrupts that cancels it.

        Args:
            prompt, again, options: as for ``submit``.

        Raises:
            WaveppError: as the future of ``submit``.
        """
        job = make_job(prompt, **options)
        future = self.submit(job, again=again)
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            self._say_unwanted(job.id)
            raise

    async def aprefill(
        self, prompt: Job | Sequence[int] | str, *, again: bool = False, **options: Any
    ) -> JobResult:
        """As ``prefill``, for asyncio; cancelling it cancels the job."""
        job = make_job(prompt, **options)
        try:
            return await asyncio.wrap_future(self.submit(job, again=again))
        except asyncio.CancelledError:
            await asyncio.to_thread(self._say_unwanted, job.id)
            raise

    def submit(
        self, prompt: Job | Sequence[int] | str, *, again: bool = False, **options: Any
    ) -> Future[JobResult]:
        """Send one job; the future has its answer.

        It fails with InvalidRequest if the job is wrong, RequestTimeout if its deadline is over, RequestAborted if it
        was cancelled, RequestFailed if it was given up after several attempts, and QueueError if the server is not
        reached, the queue is full, or has lost it.

        Args:
            prompt: a job, token ids, or text for the model's own tokenizer.
            again: run a job once more whose id failed before, which else fails as it did for an hour.
            options: fields of the job beside ``token_ids`` and ``text``; it gets an id of its own unless ``id`` is one.

        Raises:
            InvalidRequest: there is no such field, or it has another type.
            QueueError: it is not open.
        """
        job = make_job(prompt, **options)
        if self._closed or not self._thread.is_alive():
            raise QueueError(_NOT_OPEN)
        return asyncio.run_coroutine_threadsafe(self._ask(job, again), self._loop)

    def cancel(self, job_id: str) -> None:
        """Say that nobody wants a job's answer any more, from wherever it was sent; one that is answered stays so.

        Raises:
            QueueError: the server is not reached.
        """
        self._call(self._cancel(job_id))

    def depth(self) -> int:
        """Jobs that no worker has taken yet.

        Raises:
            QueueError: the server does not answer.
        """
        return self._call(self._client.depth())

    def served(self) -> bool:
        """Whether a worker asks for jobs, or has some. One whose room is all taken by other requests does neither.

        Raises:
            QueueError: the server does not answer.
        """
        return self._call(self._client.served())

    def others(self) -> list[str]:
        """The other queues on the server that workers have taken jobs of, as ``NAMESPACE/MODEL``.

        Raises:
            QueueError: the server does not say.
        """
        return self._call(self._client.others())

    @property
    def called(self) -> str:
        """Its model and namespace, to be shown.

        Raises:
            QueueError: it was not opened.
        """
        return f"model {self._client.name.model} in namespace {self._client.name.namespace}"

    def _say_unwanted(self, job_id: str) -> None:
        """As ``cancel``, which goes on where the server is not reached, while this returns soon."""
        with suppress(QueueError):
            self._call(self._cancel(job_id), LAST_WORDS_SECONDS)

    def _call(self, work: Coroutine[Any, Any, Value], seconds: float = CALL_SECONDS) -> Value:
        if self._closed or not self._thread.is_alive():
            work.close()
            raise QueueError(_NOT_OPEN)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)
        except FutureTimeoutError as error:
            raise QueueError(f"the NATS server has not answered within {seconds:.0f} s") from error

    async def _cancel(self, job_id: str) -> None:
        with self._ended_by_close():
            await self._client.cancel(job_id)

    async def _ask(self, job: Job, again: bool) -> JobResult:
        try:
            with self._ended_by_close():
                return answered(await self._client.ask(job, again=again))
        except asyncio.CancelledError:
            raise QueueError(
                f"the queue was closed before job {job.id} was answered; it goes on, send its id again for the answer"
            ) from None

    @contextmanager
    def _ended_by_close(self) -> Iterator[None]:
        """Within it, the present task is one of those that end when this is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)
        try:
            yield
        finally:
            self._asked.discard(task)

    async def _end(self) -> None:
        tasks = list(self._asked)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()


def answered(answer: Answer) -> JobResult:
    """An answer, if it is none that failed.

    Raises:
        InvalidRequest, RequestTimeout, RequestAborted, RequestFailed: why there is none.
    """
    if isinstance(answer, JobResult):
        return answer
    raise _ERRORS[answer.code](answer.error)


def make_job(prompt: Job | Sequence[int] | str, **options: Any) -> Job:
    """A job of what callers give.

    Raises:
        InvalidRequest: there is no such option, or it has another type than it should.
    """
    if isinstance(prompt, Job):
        if options:
            raise InvalidRequest(
                f"job {prompt.id} is given with {', '.join(sorted(options))} beside it; give them to the job instead"
            )
        return prompt
    sampling = options.pop("sampling", None)
    if isinstance(sampling, SamplingParams):
        options["sampling"] = {
            key: value for key, value in msgspec.structs.asdict(sampling).items() if value is not None
        }
    elif sampling is not None:
        options["sampling"] = sampling
    try:
        own = {"text": prompt} if isinstance(prompt, str) else {"token_ids": list(prompt)}
        return msgspec.convert({"id": str(uuid.uuid4()), **own, **options}, Job)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequest(f"this is no job: {error}; Job says what one has") from error
