"""What a queue's streams, subjects and consumers are called on the NATS server. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

_SAFE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_TOKEN = 100
_REPLICA = r"^[A-Za-z0-9_-]{1,64}\Z"
ReplicaName = Annotated[str, Meta(pattern=_REPLICA)]
"""What senders address a replica by."""
WILDCARDS = ("*", ">")
"""What stands for other tokens of a subject, and is no job's; a server takes it as it is from whoever publishes it."""
_HASHED = "~"
"""What the token of a hashed text begins with; no text that is its own token has it."""


def token(text: str) -> str:
    """A text as one token of a subject: itself if it can be one, else its hash; different texts differ."""
    if len(text) <= _LONGEST_TOKEN and _SAFE.fullmatch(text):
        return text
    return _HASHED + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]


def token_of(subject: str) -> str:
    """The token of the job that a subject is of."""
    return subject.rpartition(".")[2]


def address_of(subject: str) -> str:
    """What a job's subject addresses."""
    return subject.split(".")[-2]


def replica_of(subject: str) -> str | None:
    """The replica that a job's subject addresses; None if it could be none's name."""
    address = address_of(subject)
    return address if re.match(_REPLICA, address) else None


def queue_of(stream: str) -> str | None:
    """The queue that has a stream for its jobs, as ``NAMESPACE/MODEL`` in tokens; None of another stream."""
    found = re.fullmatch(r"wavepp:([^:]+):([^:]+):jobs", stream)
    return None if found is None else f"{found[1]}/{found[2]}"


@dataclass(frozen=True)
class QueueName:
    """The queue of one model in one Dynamo namespace.

    Attributes:
        namespace: as Dynamo's.
        model: the name that clients ask for.
    """

    namespace: str
    model: str

    @property
    def root(self) -> str:
        """What all its subjects begin with."""
        return f"wavepp.{token(self.namespace)}.{token(self.model)}"

    @property
    def jobs_stream(self) -> str:
        """Jobs that are not over yet: a work queue."""
        return self._stream("jobs")

    @property
    def states_stream(self) -> str:
        """What became of each job, one message a job."""
        return self._stream("states")

    @property
    def dead_stream(self) -> str:
        """Jobs that were given up."""
        return self._stream("dead")

    def job(self, job: str, replica: str | None = None) -> str:
        """The subject that a job is sent to; one that addresses a replica, if it is for that.

        Args:
            job: its token; ``*`` stands for any.
            replica: as it calls itself; ``*`` stands for any.
        """
        return f"{self.root}.job.any.{job}" if replica is None else f"{self.root}.job.to.{replica}.{job}"

    def state(self, job: str) -> str:
        """The subject of what becomes of a job, by its token; ``*`` stands for any."""
        return f"{self.root}.state.{job}"

    def dead(self, job: str) -> str:
        """The subject of a job that was given up, by its token; ``*`` stands for any."""
        return f"{self.root}.dead.{job}"

    def cancel(self, job: str) -> str:
        """The subject at which workers hear that nobody wants a job any more; ``*`` stands for any."""
        return f"{self.root}.cancel.{job}"

    def replica(self, replica: str) -> str:
        """The subject at which a replica that takes jobs says who it is."""
        return f"{self.root}.replica.{replica}"

    @property
    def replicas(self) -> str:
        """The subject at which all replicas that take jobs say who they are."""
        return f"{self.root}.replicas"

    def consumer(self, replica: str | None) -> str:
        """The consumer of jobs for any replica, or of those that address one."""
        return "any" if replica is None else f"to-{replica}"

    def addressee(self, consumer: str) -> str | None:
        """Whose jobs a consumer delivers; None if anybody's."""
        return consumer.removeprefix("to-") if consumer.startswith("to-") else None

    def _stream(self, kind: str) -> str:
        return f"wavepp:{token(self.namespace)}:{token(self.model)}:{kind}"
