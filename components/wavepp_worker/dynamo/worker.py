"""What every WavePP worker does alike under Dynamo: start, health, load reports, controls, and dying."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from dynamo._core import Context
from dynamo.common.backend.engine import EngineConfig as Registration
from dynamo.common.backend.engine import GenerateRequest, LLMEngine
from dynamo.common.backend.health_check import build_health_check_payload, is_probe
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.publisher import ComponentSnapshot
from dynamo.common.constants import DisaggregationMode
from prometheus_client import CollectorRegistry

from wavepp_worker.dynamo.control_bodies import Control
from wavepp_worker.dynamo.dropped_requests import DroppedRequests
from wavepp_worker.dynamo.etcd_use import EXIT_RUNTIME_ENDED, runtime_ended_line
from wavepp_worker.dynamo.exceptions import to_dynamo_exception
from wavepp_worker.dynamo.forward_passes import ForwardPasses
from wavepp_worker.dynamo.live_requests import LiveRequests
from wavepp_worker.dynamo.load_snapshots import SnapshotThread
from wavepp_worker.dynamo.lora_models import STAY_SECONDS, AdapterModels
from wavepp_worker.dynamo.metrics import METRIC_PREFIX
from wavepp_worker.dynamo.model_cards import card_reader
from wavepp_worker.dynamo.pause import Pause
from wavepp_worker.dynamo.perf_metrics import PerfMetrics
from wavepp_worker.dynamo.presence import watch_presence
from wavepp_worker.dynamo.request_log import TraceIds, log_requests
from wavepp_worker.dynamo.runtime_args import RuntimeArgs
from wavepp_worker.dynamo.stop_order import StopOrder
from wavepp_worker.dynamo.tracer import make_tracer
from wavepp_worker.dynamo.worker_controls import WorkerControls
from wavepp_worker.errors import EngineDead, InvalidRequest, WaveppError, WorkerStarting
from wavepp_worker.etcd_leases import end_lease
from wavepp_worker.worker_description import EngineDescription, WorkerDescription

logger = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 70
UNREGISTER_SECONDS = 1.0
"""For discovery to forget the worker."""
LAST_ANSWERS_SECONDS = 0.5
"""After its engine died or was closed, how long a worker goes on so that requests in flight get their error."""
CLEANUP_SECONDS = 3.0
"""For the engine to stop, before the process ends all the same."""


class WaveppWorker(LLMEngine):
    """The lifecycle of a worker; subclasses add the engine and ``generate``.

    Attributes:
        tracer: records its requests' spans; None where traces are not exported.
        passes: where its waves are reported.
        start_error: why it did not start.
    """

    mode: DisaggregationMode
    """Its role."""

    def __init__(self, runtime: RuntimeArgs, adapters: Iterable[str] = ()) -> None:
        """``adapters``: names of the LoRA adapters that requests may choose."""
        self._runtime = runtime
        self._adapters = AdapterModels(adapters)
        self._registration: Registration | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._endpoint: Any = None
        self._client: Any = None
        self._presence: asyncio.Task[None] | None = None
        self._snapshot_publisher: Any = None
        self._snapshot_thread = SnapshotThread(self._publish_snapshot)
        self._dying = threading.Event()
        self._stop_order = StopOrder()
        self._closed = False
        self._leaving: asyncio.Task[None] | None = None
        self._end: Future[None] | None = None
        self._live = LiveRequests()
        self._pause = Pause()
        self._controls = WorkerControls(self)
        self.passes = ForwardPasses()
        self._perf_metrics = PerfMetrics(runtime, self.passes.samples) if runtime.perf_metrics else None
        self.tracer = make_tracer(os.environ)
        self.start_error: WaveppError | None = None

    @abstractmethod
    def open(self) -> Registration:
        """Start the engine, in a thread that may block, and say what to register."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine, in a thread that may block; idempotent, also after a failed or no ``open``."""

    @abstractmethod
    def let_go(self, request_id: str) -> None:
        """Abort the request that is answered under this id; unknown ids are ignored."""

    @abstractmethod
    def registries(self) -> list[CollectorRegistry]:
        """The metrics to show on ``/metrics``."""

    @abstractmethod
    def audit(self) -> dict[str, Any]:
        """Prove at rest that nothing leaked; may block for half a minute."""

    @abstractmethod
    def describe(self) -> tuple[EngineDescription, ...]:
        """What it runs.

        Raises:
            EngineDead: it does not run.
        """

    @abstractmethod
    def timings(self, last: int) -> list[dict[str, Any]]:
        """Where the time of the last requests went, newest first."""

    @abstractmethod
    def snapshot(self) -> ComponentSnapshot:
        """The worker's load."""

    async def start(self, worker_id: int) -> Registration:
        """Start the engine; requests can be taken when this returns."""
        del worker_id
        # Dynamo's handlers are there only now.
        log_requests(os.environ, self._live.trace_of)
        self._loop = asyncio.get_running_loop()
        try:
            registration = await asyncio.to_thread(self.open)
        except WaveppError as error:
            if self._leaving is not None:
                # It was closed while it started, and what ends the process is under way.
                await self._leaving
            self.start_error = error
            raise
        self._snapshot_thread.start()
        self._registration = registration
        return registration

    async def cleanup(self) -> None:
        """Stop everything, and let requests end before if told to; safe at any time and any number of times."""
        if self._closed:
            return
        self._closed = True
        if self._presence is not None:
            self._presence.cancel()
        # Whose engine died has no time.
        await self._adapters.withdraw(0.0 if self._dying.is_set() else STAY_SECONDS)
        # Dynamo itself waits for prefill workers alone, and cleans others up whatever they still answer.
        await self._stop_order.wait(self.is_quiescent)
        self._snapshot_thread.close()
        self.passes.close()
        if self._perf_metrics is not None:
            await self._perf_metrics.close()
        await asyncio.to_thread(self.close)
        if self._live:
            await asyncio.sleep(LAST_ANSWERS_SECONDS)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    async def is_quiescent(self) -> bool | None:
        """Whether nobody waits for anything of this worker. Dynamo itself asks prefill workers alone."""
        return not self._live

    def answering(self, request_id: str, context: Context) -> AbstractContextManager[None]:
        """The time for which a request is answered; raises InvalidRequest if its id is in use."""
        trace = TraceIds(context.trace_id, context.span_id)
        return self._live.entered(request_id, context.is_stopped, trace)

    def headers(self, context: Context) -> Mapping[str, str] | None:
        """Of Dynamo's span of a request, where that is traced."""
        return None if self.tracer is None else context.trace_headers()

    def exception(self, error: WaveppError) -> Exception:
        """Dynamo's exception for one of ours; of an engine that was closed it tells why."""
        if isinstance(error, EngineDead) and self._stop_order.reason is not None:
            error = EngineDead(self._stop_order.reason)
        return to_dynamo_exception(error)

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        """Keep the endpoint: to see that discovery has it, and to take it out if the engine dies."""
        self._endpoint = endpoint
        self.passes.open(endpoint)
        if self._perf_metrics is not None:
            await self._perf_metrics.open()
        if self.tracer is not None:
            self.tracer.replica = f"{endpoint.connection_id():x}"
        self._client = await endpoint.client()
        self._watch_presence()
        if not self._stop_order.given:
            assert self._registration is not None, "an endpoint is made of a worker that has started"
            runtime = self._runtime
            where = (runtime.namespace, runtime.component, runtime.endpoint)
            await self._adapters.enter(
                endpoint,
                self._client,
                card_reader(runtime.options.discovery_backend, os.environ, where),
                self.mode,
                self._registration,
                runtime.options,
                self._adapters_failed,
            )
            # What ends the process may be under way, and it must not come into discovery meanwhile.
            if self._leaving is not None:
                await self._leaving
            elif self._end is not None:
                await asyncio.wrap_future(self._end)

    def _adapters_failed(self, error: Exception) -> None:
        self.leave(f"its adapters cannot be entered in discovery: {error}")

    def told_to_stop(self) -> None:
        """Stop looking: Dynamo takes this worker out of discovery now. Its requests have a while to end.

        One that no frontend knows yet ends its process at once.
        """
        self._stop_order.give()
        if self._presence is not None:
            self._presence.cancel()
        if self._loop is None:
            # Dynamo may not listen for signals yet, and there is nothing to finish.
            leave_process(0)
        elif self._leaving is None and (self._registration is None or self._adapters.hold_worker_back):
            # Dynamo would wait until the engine has started, or its adapters are there; nobody sends it requests yet.
            self._leaving = self._loop.create_task(self._leave_start())
        else:
            self._adapters.enter_no_more()

    async def _leave_start(self) -> None:
        """End the process before the worker is in discovery; a model that is being loaded is not waited for."""
        forced = _leave_at_latest(CLEANUP_SECONDS, 0)
        await self._adapters.withdraw()
        await asyncio.to_thread(self.close)
        await asyncio.to_thread(self.forget_in_discovery)
        forced.cancel()
        leave_process(0)

    def forget_in_discovery(self) -> None:
        """Leave nothing in etcd; may block for seconds.

        Dynamo gives its lease up in a task of its own, for which it does not wait: a process that ends first leaves all
        until the lease is over.
        """
        if self._endpoint is not None and self._runtime.options.discovery_backend == "etcd":
            end_lease(os.environ, f"{self._endpoint.connection_id():x}")

    def runtime_ended(self) -> int:
        """The exit code, now that Dynamo is done with this worker; says why if nobody told it to stop."""
        if self._stop_order.given:
            return 0
        if not self._dying.is_set():
            sys.stderr.write(runtime_ended_line(self._runtime.options))
        return EXIT_RUNTIME_ENDED

    async def register_prometheus(self, metrics: Any) -> None:
        """Show our metrics beside Dynamo's own."""
        for registry in self.registries():
            register_engine_registry(metrics, registry, prefix_filters=[METRIC_PREFIX])

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self._snapshot_publisher = publisher

    async def abort(self, context: Context) -> None:
        """The caller of a request is gone. Another one that was refused for the same id had a caller, too."""
        request_id = str(context.id())
        if self._live.given_up(request_id):
            self.let_go(request_id)

    async def health_check_payload(self) -> dict[str, Any] | None:
        """One token, prefilled or answered without any other worker."""
        return build_health_check_payload(bos_token_id=0)

    def check_open(self, request: GenerateRequest) -> None:
        """Raise WorkerPaused if a paused worker refuses a request, and WorkerStarting a starting one a health probe.

        A paused worker is well. One whose adapters are still to be in discovery is not, and takes requests for those of
        its models that are.
        """
        if not is_probe(request):
            self._pause.check_open()
        elif self._adapters.entering:
            raise WorkerStarting(
                "this worker's adapters are not in discovery yet; ask again in a few seconds"
            )

    def controls(self) -> dict[str, Control]:
        """What an operator may ask of it, by name; each takes a JSON object and answers one.

        A control raises InvalidRequest if its body is wrong, and any other WaveppError if it cannot be done.
        """
        return self._controls.by_name()

    def supported_controls(self) -> set[str]:
        return set(self.controls())

    def description(self) -> WorkerDescription:
        """As ``describe``, with the id under which frontends know this worker."""
        instance = None if self._endpoint is None else f"{self._endpoint.connection_id():x}"
        return WorkerDescription(
            instance=instance,
            engines=self.describe(),
            paused=self._pause.on,
            entering=self._adapters.entering,
        )

    async def engine_control(self, control: str, body: Any) -> dict[str, Any]:
        """Answer ``POST /engine/control/CONTROL``."""
        return await self._controls.answer(self.controls(), control, body)

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        return len(self._live)

    async def pause(self, seconds: float) -> bool:
        """Take no new requests; whether all others ended within ``seconds``.

        Raises:
            InvalidRequest: it is not in discovery.
        """
        endpoint = self._present_endpoint()
        return await self._pause.begin(
            endpoint, self._stop_taking, self._take_again, self.is_quiescent, seconds
        )

    async def resume(self) -> bool:
        """Take requests again; whether it was paused.

        Raises:
            InvalidRequest: it is not in discovery.
        """
        return await self._pause.end(self._present_endpoint(), self._take_again)

    def _present_endpoint(self) -> Any:
        if self._endpoint is None or self._stop_order.given or self._dying.is_set():
            raise InvalidRequest("this worker is not in discovery: it starts, or leaves")
        return self._endpoint

    async def _stop_taking(self) -> None:
        if self._presence is not None:
            self._presence.cancel()
            await asyncio.gather(self._presence, return_exceptions=True)
        self.take_jobs(taking=False)

    def _take_again(self) -> None:
        self._watch_presence()
        self.take_jobs(taking=True)

    def take_jobs(self, *, taking: bool) -> None:
        """Take or leave work that comes from elsewhere than Dynamo's frontends; here none does."""
        del taking

    def _watch_presence(self) -> None:
        if not self._stop_order.given:
            dropped = DroppedRequests(os.environ)
            self._presence = asyncio.create_task(
                watch_presence(self._endpoint, self._client, self.leave, dropped)
            )

    def engine_died(self, reason: str) -> None:
        """Leave, as the engine is dead. Requests that arrive meanwhile are refused."""
        self.leave(f"the engine died: {reason}")

    def leave(self, reason: str) -> None:
        """Leave the world in order: out of discovery, last answers, children gone, exit code 70; from any thread."""
        if self._dying.is_set() or self._closed:
            return
        self._dying.set()
        # One write, as other threads log to the same stream.
        sys.stderr.write(f"FATAL: {reason}\n")
        sys.stderr.flush()
        # Should the loop be stuck, the process must still end.
        limit = UNREGISTER_SECONDS + LAST_ANSWERS_SECONDS + CLEANUP_SECONDS
        forced = _leave_at_latest(limit, EXIT_ENGINE_DIED)
        if self._loop is not None:
            self._end = asyncio.run_coroutine_threadsafe(self._die(forced), self._loop)

    async def _die(self, forced: threading.Timer) -> None:
        if self._endpoint is not None:
            try:
                await asyncio.wait_for(self._endpoint.unregister_endpoint_instance(), UNREGISTER_SECONDS)
            except Exception:
                logger.exception("could not leave discovery; the frontend will notice by itself")
        await asyncio.sleep(LAST_ANSWERS_SECONDS)
        await self.cleanup()
        forced.cancel()
        leave_process(EXIT_ENGINE_DIED)

    def _publish_snapshot(self) -> None:
        self.passes.repeat(busy=bool(self._live))
        if self._snapshot_publisher is not None:
            self._snapshot_publisher.publish(0, self.snapshot())


def _leave_at_latest(seconds: float, code: int) -> threading.Timer:
    """End this process with an exit code by then, whatever hangs, unless the timer is cancelled before."""
    forced = threading.Timer(seconds, leave_process, (code,))
    forced.daemon = True
    forced.start()
    return forced


def leave_process(code: int) -> None:
    """End this process at once with an exit code; what was printed is out."""
    sys.stderr.flush()
    sys.stdout.flush()
    # After an engine's death, Dynamo's own shutdown would wait for its grace period and then report success.
    os._exit(code)
