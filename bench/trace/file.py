"""Public request traces in Mooncake's format: arrival times, lengths, and chained ids of 512-token blocks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import msgspec
import numpy as np
from wavepp_worker import token_ids
from wavepp_worker.runtime.planning.wave_cost import WaveCost

TRACE_BLOCK = 512


class TraceRequest(msgspec.Struct, frozen=True):
    """One line: ``timestamp`` in ms; an id stands for a block and all before it, the last one for a part of a block."""

    timestamp: int
    input_length: int
    hash_ids: list[int]

    def tokens(self, vocabulary: int, scale: int = 1) -> bytes:
        """The prompt as packed token ids: the same ids give the same tokens.

        ``scale`` divides the length of every block, and so of the prompt, which has one token at least.
        """
        block, length = TRACE_BLOCK // scale, max(1, self.input_length // scale)
        ids = np.repeat(np.asarray(self.hash_ids, np.uint64), block)[:length]
        offsets = np.tile(np.arange(block, dtype=np.uint64), len(self.hash_ids))[:length]
        mixed = (ids * np.uint64(TRACE_BLOCK) + offsets + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        return token_ids.pack((mixed >> np.uint64(33)) % np.uint64(vocabulary))


def read_trace(file: Path, most: int | None = None) -> list[TraceRequest]:
    """The first ``most`` requests, in the order of their arrival.

    Raises:
        ValueError: a line is not of the format; says which.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    requests = []
    for number, line in enumerate(file.read_bytes().splitlines()[:most], start=1):
        try:
            requests.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
    return sorted(requests, key=lambda request: request.timestamp)


def cached_tokens(requests: Iterable[TraceRequest]) -> list[int]:
    """Tokens of each request that a cache which never evicts could reuse, in whole trace blocks."""
    seen: set[int] = set()
    cached = []
    for request in requests:
        full = request.hash_ids[: request.input_length // TRACE_BLOCK]
        cached.append(TRACE_BLOCK * sum(1 for _ in takewhile(seen.__contains__, full)))
        seen.update(full)
    return cached


def reusable(requests: list[TraceRequest]) -> float:
    """Share of the tokens that a cache which never evicts could reuse, in whole trace blocks."""
    return sum(cached_tokens(requests)) / sum(request.input_length for request in requests)


def rate_for_load(requests: list[TraceRequest], load: float, cost: WaveCost, full: int) -> float:
    """How many times as fast requests have to come to keep a stage of this cost busy for a share ``load`` of the time.

    That is in full waves of ``full`` tokens, and with all that could be reused.
    """
    work = sum(
        cost.work(cached, tokens) + cost.a * tokens / full
        for request, cached in zip(requests, cached_tokens(requests), strict=True)
        if (tokens := request.input_length - cached)
    )
    seconds = (requests[-1].timestamp - requests[0].timestamp) / 1000
    return load * seconds / work
