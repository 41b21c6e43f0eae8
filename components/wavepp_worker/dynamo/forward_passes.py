"""Every wave of a prefill engine and every step of a decode engine, as Dynamo's planner hears of them."""

from __future__ import annotations

import logging
import time
from typing import Any

from dynamo.common.forward_pass_metrics import ForwardPassMetrics, ScheduledRequestMetrics
from dynamo.llm import FpmDirectPublisher

from wavepp_worker.decode.engine_io import DecodeStep
from wavepp_worker.dynamo.pass_samples import PassSamples
from wavepp_worker.runtime.protocol.load import PrefillPass

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 0.5
"""Without a pass after which what waits is told again. After a second Dynamo's publisher says that the worker is idle,
which one is not whose passes take longer."""


class ForwardPasses:
    """Publishes forward passes; thread-safe.

    Whatever a pass was of, what waits is told of both engines of a worker: who looks now and then has the latest alone.

    Attributes:
        samples: of what was published.
    """

    def __init__(self) -> None:
        self.samples = PassSamples()
        self._publisher: Any = None
        self._prefill_queue = (0, 0)
        self._decode_queue = (0, 0)
        self._last = 0.0

    def open(self, endpoint: Any) -> None:
        """Publish from now on, as the worker whose endpoint of Dynamo this is."""
        try:
            self._publisher = FpmDirectPublisher(endpoint, str(endpoint.connection_id()), 1)
        except RuntimeError as error:
            logger.warning("forward passes are not published, so no planner can scale by load: %s", error)

    def close(self) -> None:
        """Publish nothing more; idempotent."""
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.shutdown()

    def on_pass(self, wave: PrefillPass) -> None:
        """A wave has passed the pipeline."""
        self._prefill_queue = wave.queued_requests, wave.queued_tokens
        self._publish(wave.seconds, prefill=(wave.requests, wave.tokens, wave.context_tokens))

    def on_step(self, step: DecodeStep) -> None:
        """The decode engine has made a step."""
        self._decode_queue = step.queued_requests, step.queued_tokens
        self._publish(
            step.seconds,
            prefill=(step.prompt_requests, step.prompt_tokens, step.prompt_context_tokens),
            decode=(step.requests, step.kv_tokens),
        )

    def repeat(self, *, busy: bool) -> None:
        """To be called now and then: tell again what waits, if the worker is busy and nothing was told for a while."""
        if not busy:
            # What waited has been given up.
            self._prefill_queue = self._decode_queue = (0, 0)
        elif time.monotonic() - self._last >= REPEAT_SECONDS:
            self._publish(0.0)

    def _publish(
        self, seconds: float, prefill: tuple[int, int, int] = (0, 0, 0), decode: tuple[int, int] = (0, 0)
    ) -> None:
        self.samples.add(
            ForwardPassMetrics(
                wall_time=seconds,
                scheduled_requests=ScheduledRequestMetrics(
                    num_prefill_requests=prefill[0],
                    sum_prefill_tokens=prefill[1],
                    sum_prefill_kv_tokens=prefill[2],
                    num_decode_requests=decode[0],
                    sum_decode_kv_tokens=decode[1],
                ),
            )
        )
        publisher = self._publisher
        if publisher is None:
            return
        self._last = time.monotonic()
        try:
            publisher.publish(
                dp_rank=0,
                scheduled_num_prefill_requests=prefill[0],
                scheduled_sum_prefill_tokens=prefill[1],
                scheduled_sum_prefill_kv_tokens=prefill[2],
                scheduled_num_decode_requests=decode[0],
                scheduled_sum_decode_kv_tokens=decode[1],
                queued_num_prefill_requests=self._prefill_queue[0],
                queued_sum_prefill_tokens=self._prefill_queue[1],
                queued_num_decode_requests=self._decode_queue[0],
                queued_sum_decode_kv_tokens=self._decode_queue[1],
                wall_time_secs=seconds,
            )
        # No request shall fail of what a planner is told.
        except Exception:
            logger.exception("a forward pass could not be published")
