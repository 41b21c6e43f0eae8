"""The streams of a queue on the NATS server."""

from __future__ import annotations

import asyncio
import datetime
import time
from contextlib import suppress
from typing import Any

from wavepp_worker.errors import ConfigError, QueueError
from wavepp_worker.intake.names import QueueName, queue_of, token_of
from wavepp_worker.intake.sentences import shortened

RESULT_SECONDS = 3600
"""How long what became of a job is kept, and an id means that job."""
DEAD_SECONDS = 7 * 24 * 3600
"""How long jobs are kept that were given up."""
MOST_JOBS = 1_000_000
"""Jobs that wait or run in one queue; more are refused."""
MOST_DEAD = 100_000
JETSTREAM_SECONDS = 2.0
"""Until a server that answers has its JetStream."""
_EXISTS_OTHERWISE = 10058
_NO_JETSTREAM = (None, 10008, 10039, 10076)


def _no_jetstream(error: Any) -> bool:
    from nats.js.errors import ServiceUnavailableError

    return isinstance(error, ServiceUnavailableError) and error.err_code in _NO_JETSTREAM


class QueueStreams:
    """One queue on one connection. For one event loop."""

    def __init__(self, connection: Any, name: QueueName) -> None:
        """``connection``: a ``NatsClient``."""
        self.name = name
        self._connection = connection
        self.jetstream = connection.jetstream()

    async def ensure(self) -> None:
        """Make the streams that are not there; those that are stay as they are, so that an operator may make them.

        Raises:
            ConfigError: the server has no JetStream, or a stream is there that is of no use.
        """
        name = self.name
        common: dict[str, Any] = {"storage": "file", "discard": "new"}
        jobs = {
            "subjects": [name.job("*"), name.job("*", "*")],
            "retention": "workqueue",
            # A second job of an id is refused by the server itself, for as long as the first is there.
            "max_msgs_per_subject": 1,
            "discard_new_per_subject": True,
            "max_msgs": MOST_JOBS,
        }
        states = {
            "subjects": [name.state("*")],
            "max_msgs_per_subject": 1,
            "max_age": RESULT_SECONDS,
            "allow_direct": True,
            "discard": "old",
        }
        dead = {
            "subjects": [name.dead("*")],
            "max_age": DEAD_SECONDS,
            "max_msgs": MOST_DEAD,
            "discard": "old",
        }
        for stream, own in (
            (name.jobs_stream, jobs),
            (name.states_stream, states),
            (name.dead_stream, dead),
        ):
            await self._ensure_stream(stream, {**common, **own})

    async def _ensure_stream(self, stream: str, config: dict[str, Any]) -> None:
        from nats.errors import Error, TimeoutError
        from nats.js.errors import APIError

        end = time.monotonic() + JETSTREAM_SECONDS
        try:
            while True:
                try:
                    await self.jetstream.add_stream(name=stream, **config)
                    return
                except APIError as error:
                    # A server that has just started has none yet.
                    if not _no_jetstream(error) or time.monotonic() > end:
                        raise
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise ConfigError(f"NATS_SERVER: the server does not answer for stream {stream}") from error
        except APIError as error:
            if _no_jetstream(error):
                raise ConfigError(
                    "NATS_SERVER: the NATS server has no JetStream; start it with nats-server -js"
                ) from error
            if error.err_code != _EXISTS_OTHERWISE:
                raise ConfigError(
                    f"NATS_SERVER: stream {stream} cannot be made: {error.description}"
                ) from error
        except Error as error:
            raise ConfigError(f"NATS_SERVER: stream {stream} cannot be made: {error}") from error
        found = (await self.jetstream.stream_info(stream)).config
        for key in ("retention", "max_msgs_per_subject", "subjects"):
            wanted = config.get(key, "limits" if key == "retention" else None)
            if wanted is not None and getattr(found, key) != wanted:
                raise ConfigError(
                    f"NATS_SERVER: stream {stream} is there with {key} {getattr(found, key)!r}, and should have "
                    f"{wanted!r}; delete it, so that it is made anew"
                )

    async def others(self) -> list[str]:
        """The queues on the server but this one that workers have taken jobs of, as ``NAMESPACE/MODEL``."""
        streams = await self.jetstream.streams_info()
        names = [each.config.name or "" for each in streams if each.state.consumer_count]
        return sorted(filter(None, map(queue_of, {*names} - {self.name.jobs_stream})))

    async def jobs(self) -> int:
        """Jobs that are not over."""
        return int((await self.jetstream.stream_info(self.name.jobs_stream)).state.messages)

    async def last_number(self) -> int:
        """Of the messages of jobs, those that are over too; 0 if there was none."""
        from nats.js.errors import NotFoundError

        try:
            return int((await self.jetstream.stream_info(self.name.jobs_stream)).state.last_seq)
        except NotFoundError:
            return 0

    async def dead_jobs(self) -> int:
        """Jobs that were given up, and are kept."""
        return int((await self.jetstream.stream_info(self.name.dead_stream)).state.messages)

    async def addressed(self) -> list[str]:
        """The subjects of jobs that address replicas and are not over."""
        return await self._subjects(self.name.job("*", "*"))

    async def _subjects(self, pattern: str) -> list[str]:
        info = await self.jetstream.stream_info(self.name.jobs_stream, subjects_filter=pattern)
        return list(info.state.subjects or {})

    async def subject_of(self, job: str) -> str | None:
        """The subject of a job that is not over, by its token or by what its token begins with, and ``-``."""
        for pattern in (self.name.job("*"), self.name.job("*", "*")):
            for subject in await self._subjects(pattern):
                own = token_of(subject)
                if own == job or own.startswith(f"{job}-"):
                    return subject
        return None

    async def message(self, subject: str) -> tuple[datetime.datetime, int] | None:
        """When the job of a subject was sent, and before how many at most others were; None if it is over."""
        from nats.js.errors import NotFoundError

        try:
            found = await self.jetstream.get_last_msg(self.name.jobs_stream, subject)
        except NotFoundError:
            return None
        state = (await self.jetstream.stream_info(self.name.jobs_stream)).state
        return found.time, max(0, min(state.messages - 1, found.seq - state.first_seq))

    async def remove(self, subject: str) -> None:
        """Take the job of a subject from the queue, whoever has it."""
        from nats.js.errors import NotFoundError

        with suppress(NotFoundError):
            found = await self.jetstream.get_last_msg(self.name.jobs_stream, subject)
            # What has a wildcard in it is also the name of others.
            if found.subject == subject:
                await self.jetstream.delete_msg(self.name.jobs_stream, found.seq)

    async def sent_at(self, replica: str, number: int) -> datetime.datetime | None:
        """When the first job for ``replica`` was sent whose number is at least ``number``; None if there is none."""
        from nats.js.errors import NotFoundError

        try:
            found = await self.jetstream.get_msg(
                self.name.jobs_stream, seq=number, subject=self.name.job("*", replica), next=True
            )
        except NotFoundError:
            return None
        return found.time

    async def is_there(self, job: str) -> bool:
        """Whether a job is not over, by its token."""
        from nats.js.errors import NotFoundError

        for subject in (self.name.job(job), self.name.job(job, "*")):
            with suppress(NotFoundError):
                await self.jetstream.get_last_msg(self.name.jobs_stream, subject)
                return True
        return False

    async def is_message_there(self, number: int) -> bool:
        """Whether the job that has this number in the stream is not over; no server counts to some numbers."""
        from nats.js.errors import BadRequestError, NotFoundError

        try:
            await self.jetstream.get_msg(self.name.jobs_stream, seq=number)
        except (NotFoundError, BadRequestError):
            return False
        return True

    async def bury(self, job: str, data: bytes, reason: str, **about: str) -> int:
        """Keep a job among the dead, as it was sent, with the reason in its headers.

        Returns:
            how many bytes had to be cut off, as they do not fit beside the headers; a header says so, too.

        Raises:
            QueueError: the server does not take it.
        """
        from nats.errors import Error

        from wavepp_worker.intake.nats_client import headers_size

        # A header is one line.
        headers = {"Wavepp-Reason": shortened(" ".join(reason.split())), **about}
        most = self._connection.max_payload
        if len(data) + headers_size(headers) > most:
            headers["Wavepp-Cut"] = f"of {len(data)} bytes"
            kept = data[: max(0, most - headers_size(headers))]
        else:
            kept = data
        try:
            await self.jetstream.publish(self.name.dead(job), kept, headers=headers)
        except Error as error:
            raise QueueError(f"the dead job {job} cannot be kept: {error}") from error
        return len(data) - len(kept)
