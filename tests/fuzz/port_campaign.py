"""Sends damaged messages to every address that a graph listens on, while a plain client keeps asking."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from wavepp_worker.handoff.claim_messages import TO_CLAIMANT
from wavepp_worker.handoff.connection import deadline
from wavepp_worker.handoff.connection.channel import HELLO_SECONDS
from wavepp_worker.handoff.pull_messages import TO_PULLER

from tests.fuzz import valid_messages
from tests.fuzz.findings import Findings
from tests.fuzz.listening import Listening, listening
from tests.fuzz.mutations import conversation
from tests.fuzz.target import Target

AT_ONCE = 16
HANG_UP_SECONDS = HELLO_SECONDS + 30.0
"""How long a connection whose client has said its last may be silent before it is over, on a machine that is busy.

Thousands of requests that were said in one go may well be answered one by one.
"""
MOST_GROWTH_BYTES = 512 << 20
LOOK_EVERY_SECONDS = 2.0
MOST_READ = 1 << 20
ANSWER_SECONDS = 3.0
"""What a port that is asked what it is may take to answer."""
SILENT_SHARE = 0.0005
"""Of the connections: they neither finish what they say nor leave, and must be hung up on."""


@dataclass(frozen=True)
class Port:
    """An address, what it is in the summary, and what it understands."""

    at: Listening
    kind: str
    valid: Sequence[bytes]

    @property
    def is_ours(self) -> bool:
        """Whether it is this project that has to hang up on who says nothing sensible."""
        return self.kind in ("bootstrap", "pull", "frontend")


class PortCampaign:
    """The messages sent so far, and what came of them.

    Attributes:
        messages: by kind of port.
    """

    def __init__(self, target: Target, findings: Findings) -> None:
        self._target = target
        self._findings = findings
        # Socket files of ranks are another matter: who can open them can stop the ranks in any case.
        found = listening(processes(target))
        addresses = [each for each in found if each.port or each.process == "launcher"]
        self.ports = asyncio.run(_ports(addresses))
        self.messages: Counter[str] = Counter()

    def run(self, messages: int, seed: int, advance: Callable[[int], None] = lambda _: None) -> None:
        """Send about ``messages`` messages, each port as many; then look at everything.

        Args:
            advance: told how many more messages have been sent.
        """
        before = self._target.memory()
        asyncio.run(self._run(messages, seed, advance))
        self._target.check(self._findings, f"{messages} messages with seed {seed}")
        grown = self._target.memory() - before
        if grown > MOST_GROWTH_BYTES:
            self._findings.add(f"all processes together grew by {grown >> 20} MiB", f"seed {seed}")

    async def _run(self, messages: int, seed: int, advance: Callable[[int], None]) -> None:
        share = max(1, messages // len(self.ports))
        plan = [(port, seed * 1_000_003 + number) for number, port in enumerate(self.ports)]
        looking = asyncio.create_task(self._look_on())
        try:
            per_port = max(1, AT_ONCE // len(self.ports))
            await asyncio.gather(
                *(
                    self._attack(port, share // per_port, random.Random(f"{port_seed}/{lane}"), advance)
                    for port, port_seed in plan
                    for lane in range(per_port)
                )
            )
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _attack(
        self, port: Port, messages: int, draw: random.Random, advance: Callable[[int], None]
    ) -> None:
        sent = 0
        while sent < messages:
            said = conversation(port.valid, draw)
            await self._connection(port, said, draw)
            sent += len(said)
            self.messages[port.kind] += len(said)
            advance(len(said))

    async def _connection(self, port: Port, said: list[bytes], draw: random.Random) -> None:
        ending = draw.choice(("finish", "finish", "leave", "read and leave") if port.is_ours else ("leave",))
        if port.kind in ("bootstrap", "pull") and draw.random() < SILENT_SHARE:
            ending = "fall silent"
        try:
            await _talk(port, said, ending)
        except asyncio.TimeoutError:
            self._findings.add(f"{port.kind} did not hang up ({ending})", said)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            self._findings.add(f"{port.kind} takes no connection: {error}", said)
            await asyncio.sleep(0.5)
        except OSError:
            pass  # hung up on

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            wrong = self._target.deaths() or await asyncio.to_thread(self._target.plain)
            if wrong is not None:
                self._findings.add(wrong, f"{sum(self.messages.values())} messages")


async def _talk(port: Port, said: list[bytes], ending: str) -> None:
    """Say it all on one connection, and end it like that, or read until the other side hangs up.

    Raises:
        asyncio.TimeoutError: the other side said nothing for ``HANG_UP_SECONDS``, and did not hang up.
    """
    async with deadline.timeout(HANG_UP_SECONDS):
        if port.at.path:
            reader, writer = await asyncio.open_unix_connection(port.at.path)
        else:
            reader, writer = await asyncio.open_connection(port.at.host, port.at.port)
    try:
        for message in said:
            if not writer.is_closing():
                writer.write(message)
        if ending in ("leave", "read and leave"):
            # Who answers what came first need not read the rest before.
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                async with deadline.timeout(1.0):
                    await writer.drain()
        if ending == "leave":
            return
        if ending == "read and leave":
            with contextlib.suppress(asyncio.TimeoutError):
                async with deadline.timeout(0.02):
                    await reader.read(1 << 16)
            return
        if ending == "finish":
            writer.write_eof()
        read = 0
        while read < MOST_READ:
            async with deadline.timeout(HANG_UP_SECONDS):
                piece = await reader.read(1 << 16)
            if not piece:
                break
            read += len(piece)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def processes(target: Target) -> dict[int, str]:
    """What each process of the run is."""
    running = target.graph.running
    services = {entry["pid"]: entry["service"] for entry in running.state()["processes"]}
    named = {pid: services.get(pid, "rank" if _is_rank(pid) else "other") for pid in running.pids()}
    return {**named, running.process.pid: "launcher"} if running.process else named


def _is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as words:
        return b"wavepp_worker.runtime.rank.main" in words.read()
    return False


async def _ports(addresses: list[Listening]) -> list[Port]:
    """What each address is: told from who listens, and from how it answers."""
    return list(await asyncio.gather(*map(_port, addresses)))


async def _port(at: Listening) -> Port:
    if at.path:
        return Port(at, "event broker", valid_messages.ZMTP)
    openings = (valid_messages.HTTP_SYSTEM[0], valid_messages.PULLS[0], valid_messages.CLAIMS[0])
    http, pull, claim = await asyncio.gather(*(_first_bytes(at, message) for message in openings))
    if http.startswith(b"HTTP/"):
        if at.process == "Frontend":
            return Port(at, "frontend", valid_messages.HTTP_FRONTEND)
        return Port(at, "system", valid_messages.HTTP_SYSTEM)
    if _is_message(pull, TO_PULLER):
        return Port(at, "pull", valid_messages.PULLS + valid_messages.ANSWERS)
    if _is_message(claim, TO_CLAIMANT):
        return Port(at, "bootstrap", valid_messages.CLAIMS + valid_messages.ANSWERS)
    return Port(at, "Dynamo's and NIXL's own", valid_messages.ANYTHING)


def _is_message(frame: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> bool:
    with contextlib.suppress(msgspec.DecodeError):
        decoder.decode(frame[4:])
        return True
    return False


async def _first_bytes(at: Listening, message: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        writer.write(message)
        async with deadline.timeout(ANSWER_SECONDS):
            return await reader.read(1 << 16)
    except (OSError, asyncio.TimeoutError):
        return b""
    finally:
        writer.close()
