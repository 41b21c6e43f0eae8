"""Sees to it that all replicas that take jobs of one queue have the same weights: who opens it asks who is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from wavepp_worker.errors import ConfigError
from wavepp_worker.intake.job_consumers import JobConsumers
from wavepp_worker.intake.names import QueueName, ReplicaName

RIVAL_SECONDS = 5.0
"""Until another replica that opens the queue at the same time is done with that."""
AGAIN_SECONDS = 0.1
HEAR_SECONDS = 0.5
"""Until all have answered who are asked together: only who has lost its consumer is not asked by name as well."""
BACK_SECONDS = 1.0
"""Until who was there is back on a server that is reached again."""


class Peer(msgspec.Struct, frozen=True):
    """What a replica of a queue says of itself.

    Attributes:
        replica: what senders address it by.
        model: id of the model's content, equal on every host that has the same files.
        state: whether it takes jobs, is about to, or does not any more.
    """

    replica: ReplicaName
    model: str
    state: Literal["opening", "taking", "stopped"]


class QueuePeers:
    """One replica among those of its queue, on one connection. For one event loop.

    The consumers of the queue say whom to ask, and the server says at once of whom nobody is there any more. Who has
    lost its consumer, as with the server's store, hears a question to all. Of two that open a queue at the same time,
    at least one finds the other, and both know it once that one has asked; then the one whose name comes later waits
    for what becomes of the other.
    """

    def __init__(
        self,
        connection: Any,
        name: QueueName,
        consumers: JobConsumers,
        replica: str,
        model: str,
        silence: float,
        is_taking: Callable[[], bool],
    ) -> None:
        """
        Args:
            connection: of nats-py.
            replica, model: as of ``Peer``.
            silence: seconds after which a replica that does not answer counts as gone. Of one whose host is, the server
                may not know it for minutes.
            is_taking: whether this replica is to take jobs at all.
        """
        self._connection, self._name, self._consumers = connection, name, consumers
        self._replica, self._model = replica, model
        self._silence = silence
        self._is_taking = is_taking
        self._opening = True
        self._rivals: set[str] = set()
        self._back_after = self.losses

    @property
    def losses(self) -> int:
        """How often the server was lost and reached again."""
        return int(self._connection.stats["reconnects"])

    async def join(self) -> None:
        """Make sure that nobody takes jobs with other weights, and from then on say which ones this replica has.

        To be called once the replica has its consumer, by which others find it.

        Raises:
            ConfigError: somebody does, or goes first and is about to for too long; says what to change.
            nats.errors.Error: the server does not say who is there.
        """
        own, together = self._name.replica(self._replica), self._name.replicas
        answering = [await self._connection.subscribe(each, cb=self._on_question) for each in (own, together)]
        try:
            await self._settle()
        except BaseException:
            for each in answering:
                with suppress(Exception):
                    await each.unsubscribe()
            raise

    async def ask_again(self) -> None:
        """As ``join``, by who has joined and could not be asked for a while: others may have counted it as gone.

        Raises:
            ConfigError: somebody takes jobs with other weights now, and this replica has to join anew, by this.
            nats.errors.Error: as of ``join``.
        """
        try:
            await self._settle()
        except ConfigError:
            self._opening = True
            raise

    async def is_heard(self) -> bool:
        """Whether a question of this replica to itself goes through the server and back, as those of others do.

        Not a ping of nats-py, which reads nothing more after an answer to one that was given up.
        """
        return await self._ask_one(self._replica) is not None

    async def _settle(self) -> None:
        asked: set[str] = await self._known()
        end: float | None = None
        while True:
            asked |= self._rivals
            self._rivals.clear()
            others = [peer for peer in await self._ask(asked - {self._replica}) if self._differs(peer)]
            for peer in others:
                if peer.state == "taking":
                    raise self._conflict(peer)
            # Who takes jobs goes first.
            first = [peer for peer in others if self._opening and peer.replica < self._replica]
            asked = {peer.replica for peer in first}
            if not (asked or self._rivals):
                if not self._opening or self._back_after == self.losses:
                    self._opening = False
                    return
                asked, end = await self._known(), None
                continue
            if first:
                # Counted from when they have said so: what was waited for before was not theirs to hasten.
                end = end or time.monotonic() + RIVAL_SECONDS
                if time.monotonic() > end:
                    raise self._conflict(first[0])
            await asyncio.sleep(AGAIN_SECONDS)

    async def _known(self) -> set[str]:
        """Who has a consumer, or hears that all are asked."""
        while self._opening and self._back_after != self.losses:
            # Others have lost the server as well, and cannot be asked before they are back.
            self._back_after = self.losses
            await asyncio.sleep(BACK_SECONDS)
        loads, heard = await asyncio.gather(self._consumers.loads(), self._ask_all())
        return heard | {load.replica for load in loads if load.replica is not None}

    async def _ask_all(self) -> set[str]:
        """Who answers a question to all."""
        heard: set[str] = set()

        async def hear(message: Any) -> None:
            if (peer := _read(message.data)) is not None:
                heard.add(peer.replica)

        inbox = self._connection.new_inbox()
        answers = await self._connection.subscribe(inbox, cb=hear)
        try:
            await self._connection.publish(
                self._name.replicas, msgspec.json.encode(self._self()), reply=inbox
            )
            await asyncio.sleep(HEAR_SECONDS)
        finally:
            with suppress(Exception):
                await answers.unsubscribe()
        return heard

    def _differs(self, peer: Peer) -> bool:
        return peer.state != "stopped" and peer.model != self._model

    def _goes_first(self, peer: Peer) -> bool:
        return peer.state == "taking" or peer.replica < self._replica

    def _conflict(self, peer: Peer) -> ConfigError:
        name = self._name
        does = "takes jobs" if peer.state == "taking" else "is about to take jobs"
        return ConfigError(
            f"replica {peer.replica} {does} of model {name.model} in namespace {name.namespace} now with other "
            f"weights (model id {peer.model}, here {self._model}), and one queue would have the answers of both; start "
            "one of the graphs with another --namespace or --served-model-name, or stop the other one first"
        )

    async def _ask(self, replicas: Iterable[str]) -> list[Peer]:
        """What those say that are there."""
        from nats.errors import TimeoutError

        # Where a question to itself is not answered either, this replica is cut off, and others are not gone.
        own, *answers = await asyncio.gather(*map(self._ask_one, (self._replica, *replicas)))
        if own is None:
            raise TimeoutError
        return [answer for answer in answers if answer is not None]

    async def _ask_one(self, replica: str) -> Peer | None:
        """None if it is gone, or does not say."""
        from nats.errors import Error

        question = msgspec.json.encode(self._self())
        try:
            answer = await self._connection.request(self._name.replica(replica), question, self._silence)
        except Error:
            return None
        return _read(answer.data)

    async def _on_question(self, message: Any) -> None:
        asker = _read(message.data)
        # Who hears "opening" and comes first, or takes jobs, goes on, so this replica has to know of it.
        if self._opening and asker is not None and self._differs(asker) and self._goes_first(asker):
            self._rivals.add(asker.replica)
        if message.reply:
            await self._connection.publish(message.reply, msgspec.json.encode(self._self()))

    def _self(self) -> Peer:
        state: Literal["opening", "taking", "stopped"] = "opening" if self._opening else "taking"
        return Peer(self._replica, self._model, state if self._is_taking() else "stopped")


def _read(data: bytes) -> Peer | None:
    try:
        return msgspec.json.decode(data, type=Peer)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
