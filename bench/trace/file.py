"""Public request traces in Mooncake's format: arrival times, lengths, and chained ids of 512-token blocks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from wavepp_worker import token_ids

TRACE_BLOCK = 512


class TraceRequest(msgspec.Struct, frozen=True):
    """One line: ``timestamp`` in ms; an id stands for a block and all before it, the last one for a part of a block."""

    timestamp: int
    input_length: int
    hash_ids: list[int]

    def tokens(self, vocabulary: int) -> bytes:
        """The prompt as packed token ids: the same ids give the same tokens."""
        ids = np.repeat(np.asarray(self.hash_ids, np.uint64), TRACE_BLOCK)[: self.input_length]
        offsets = np.tile(np.arange(TRACE_BLOCK, dtype=np.uint64), len(self.hash_ids))[: self.input_length]
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


def reusable(requests: list[TraceRequest]) -> float:
    """Share of the tokens that a cache which never evicts could reuse, in whole trace blocks."""
    seen: set[int] = set()
    reused = 0
    for request in requests:
        full = request.input_length // TRACE_BLOCK
        for block in request.hash_ids[:full]:
            if block not in seen:
                break
            reused += TRACE_BLOCK
        seen.update(request.hash_ids[:full])
    return reused / sum(request.input_length for request in requests)
