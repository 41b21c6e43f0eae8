"""Who gets which jobs of a queue: a consumer for each replica that they address, and one for jobs that any may have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wavepp_worker.errors import QueueError
from wavepp_worker.intake.names import QueueName

FORGOTTEN_SECONDS = 24 * 3600
"""After which the server forgets the consumer of a replica that nobody asks for."""
STATUS_SECONDS = 1.5
"""Until the server answers that it has nothing; one that was restarted does not."""
MOST_FORGOTTEN = 100
"""Consumers that are forgotten at once where a stream has as many as it may."""
_TOO_MANY_CONSUMERS = 10026
_GONE = ("409", "503")
"""What the server says where a consumer was deleted, and where there is none."""


@dataclass(frozen=True)
class ConsumerLoad:
    """What one consumer has.

    Attributes:
        replica: whose jobs it delivers, None for anybody's.
        waiting: not taken by anybody yet.
        taken: delivered, and not over.
        next_number: the stream's number from which on those that wait are.
        asking: requests of workers for jobs that wait at the server.
    """

    replica: str | None
    waiting: int
    taken: int
    next_number: int
    asking: int


class JobConsumers:
    """The consumers of one queue's stream of jobs, on one connection. For one event loop."""

    def __init__(self, connection: Any, name: QueueName) -> None:
        """``connection``: of nats-py."""
        self._connection, self._name = connection, name
        self._jetstream = connection.jetstream()

    async def ensure(self, replica: str | None, silence: float) -> None:
        """Make the consumer of jobs for ``replica``, or of those for anybody.

        Where there are as many as may be (servers take 1,000 for one stream, and each life of a worker has its own),
        some without a job and without a worker that asks are forgotten first; who still needs one makes it again.

        Args:
            silence: seconds without a sign of life after which a job is delivered again.

        Raises:
            nats.js.errors.APIError: all of as many as may be have jobs, or the server refuses it otherwise.
        """
        from nats.js.errors import APIError

        try:
            await self._add(replica, silence)
        except APIError as error:
            if error.err_code != _TOO_MANY_CONSUMERS:
                raise
            await self._forget_idle()
            await self._add(replica, silence)

    async def _forget_idle(self) -> None:
        from nats.js.errors import NotFoundError

        idle = [each for each in await self.loads() if not (each.waiting or each.taken or each.asking)]
        for load in idle[:MOST_FORGOTTEN]:
            if load.replica is not None:
                with suppress(NotFoundError):
                    await self._jetstream.delete_consumer(
                        self._name.jobs_stream, self._name.consumer(load.replica)
                    )

    async def _add(self, replica: str | None, silence: float) -> None:
        await self._jetstream.add_consumer(
            self._name.jobs_stream,
            durable_name=self._name.consumer(replica),
            # Also a subject that ends with this as it is, which a ``*`` does not stand for: such a job would stay.
            filter_subject=self._name.job(">", replica),
            ack_policy="explicit",
            ack_wait=silence,
            # Workers count attempts themselves, in the states: the server would leave who had too many in the stream.
            max_deliver=-1,
            max_ack_pending=-1,
            **({} if replica is None else {"inactive_threshold": FORGOTTEN_SECONDS}),
        )

    async def take(self, replica: str | None, count: int, seconds: float | None = None) -> AsyncIterator[Any]:
        """Messages of a consumer, as they come.

        Args:
            replica: as of ``ensure``.
            count: most of them.
            seconds: to wait for them; None takes only what is there.

        Raises:
            QueueError: the consumer is not there, or its stream.
        """
        connection = self._connection
        inbox = connection.new_inbox()
        answers = await connection.subscribe(inbox)
        request: dict[str, Any] = {"batch": count, "no_wait": True}
        if seconds is not None:
            request = {"batch": count, "expires": int(seconds * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._name.jobs_stream}.{self._name.consumer(replica)}"
        from nats.errors import TimeoutError

        try:
            await connection.publish(subject, json.dumps(request).encode(), reply=inbox)
            for _ in range(count):
                try:
                    message = await answers.next_msg(timeout=(seconds or 0.0) + STATUS_SECONDS)
                except TimeoutError:
                    return
                # Whoever sends a job may give it any header; only jobs can be acknowledged.
                status = None if message.reply else (message.headers or {}).get("Status")
                if status in _GONE:
                    raise QueueError(f"there are no jobs to be had of {self._name.jobs_stream}: {status}")
                if status is not None:
                    return
                yield message
        finally:
            with suppress(Exception):
                await answers.unsubscribe()

    async def loads(self) -> list[ConsumerLoad]:
        """What every consumer has."""
        found: list[ConsumerLoad] = []
        while True:
            page = await self._jetstream.consumers_info(self._name.jobs_stream, offset=len(found))
            found += [
                ConsumerLoad(
                    self._name.addressee(info.name),
                    info.num_pending or 0,
                    info.num_ack_pending or 0,
                    (info.delivered.stream_seq if info.delivered else 0) + 1,
                    info.num_waiting or 0,
                )
                for info in page
            ]
            if len(page) < 256:
                return found
