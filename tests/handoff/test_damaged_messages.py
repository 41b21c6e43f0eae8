"""A decode worker whose prefill worker is broken or hostile: every message it gets may be damaged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from typing import Any

import msgspec
import pytest
from wavepp_worker.errors import HandoffError, RequestTimeout
from wavepp_worker.handoff.claim_messages import Offered, Prefilled
from wavepp_worker.handoff.offer import BootstrapAddress, Offer, RankAddress
from wavepp_worker.handoff.pull_messages import AllSent, KvPiece, KvRegions, NixlAgent, PullValid

from tests.fuzz.mutations import conversation
from tests.fuzz.valid_messages import ANSWERS, example
from tests.support.handoff_sides import FIRST, HOST, MODEL

SESSIONS = 400
AT_ONCE = 12
TOKENS = 4
SECONDS = 1.0
LATE_SECONDS = 20.0


def frame(message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(body)) + body


class Liar:
    """Answers claims and pulls alike with what it was told to say, and hangs up."""

    def __init__(self, draw: random.Random, width: int) -> None:
        self._draw = draw
        self._width = width
        self.port = 0

    async def __aenter__(self) -> Liar:
        self._server = await asyncio.start_server(self._answer, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            (length,) = struct.unpack("<I", await reader.readexactly(4))
            hello = await reader.readexactly(length)
            for message in self._said(b"ClaimRoom" in hello):
                writer.write(message)
            await writer.drain()
            await asyncio.sleep(self._draw.choice((0.0, 0.02)))
        writer.close()

    def _said(self, claimed: bool) -> list[bytes]:
        right = self._offer() if claimed else self._kv()
        at = self._draw.randrange(len(right) + 1)
        return right[:at] + conversation([*right, *ANSWERS], self._draw)

    def _offer(self) -> list[bytes]:
        rank = RankAddress(
            rank=0,
            host=HOST,
            port=self.port,
            layers=(0, 5),
            block_size=3,
            dtype="float32",
            bytes_per_token=self._width,
            transport="socket",
        )
        offer = Offer(request_id="a", secret=SECRET, prompt_tokens=TOKENS, model_id=MODEL, ranks=(rank,))
        return [frame(Offered(room=7, offer=offer)), frame(Prefilled(room=7, first=FIRST))]

    def _kv(self) -> list[bytes]:
        size = TOKENS * self._width
        piece = frame(KvPiece(request_id="a", start=0, end=TOKENS, size=size)) + bytes(size)
        odd = self._draw.choice(
            [msgspec.structs.replace(example(kind), request_id="a") for kind in (NixlAgent, KvRegions)]
        )
        return [
            piece,
            frame(AllSent(request_id="a", tokens=TOKENS, size=size)),
            frame(PullValid(request_id="a")),
            frame(odd),
        ]


SECRET: Any = example(next(field.type for field in msgspec.structs.fields(Offer) if field.name == "secret"))


def test_a_decode_worker_outlives_any_prefill_worker(decode: Any) -> None:
    """Each hand-off ends in time, with KV or a hand-off error, and the next one is taken."""
    at = decode(num_blocks=4096)
    outcomes: Counter[str] = Counter()

    async def session(seed: int) -> None:
        async with Liar(random.Random(seed), at.kv.bytes_per_token) as liar:
            room = BootstrapAddress(host=HOST, port=liar.port, room=7, secret=SECRET)
            try:
                await asyncio.wait_for(at.receiver.receive(room, at.allocate, SECONDS), LATE_SECONDS)
                outcomes["received"] += 1
            except (HandoffError, RequestTimeout) as error:
                outcomes[type(error).__name__] += 1
            except Exception as error:
                pytest.fail(f"seed {seed}: {error!r}")

    async def lane(seeds: range) -> None:
        for seed in seeds:
            await session(seed)

    async def main() -> None:
        await asyncio.gather(*(lane(range(first, SESSIONS, AT_ONCE)) for first in range(AT_ONCE)))

    asyncio.run(main())
    assert outcomes["received"] > 0
    assert outcomes["HandoffError"] > SESSIONS / 3, outcomes
