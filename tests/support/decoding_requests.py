"""Requests of the decode engine's parts, without an engine."""

from __future__ import annotations

import time
from typing import Any

from wavepp_worker import token_ids
from wavepp_worker.decode.decoding_request import DecodingRequest
from wavepp_worker.decode.engine_io import DecodeRequest
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.handoff.secret import Secret

from tests.support.decode_bench import Collector


def decoding(
    name: str = "r0", prompt_tokens: int = 4, *, deadline: float | None = None, **values: Any
) -> tuple[DecodingRequest, Collector]:
    """A request for the prompt 0, 1, 2, …, and what takes its outputs; a minute from its deadline."""
    collector = Collector()
    request = DecodeRequest(
        request_id=name,
        tokens=token_ids.pack(range(prompt_tokens)),
        **{
            "handoff": BootstrapAddress(host="127.0.0.1", port=1, room=1, secret=Secret.fresh()),
            "max_tokens": 4,
            **values,
        },
    )
    return DecodingRequest(request, collector, deadline or time.monotonic() + 60), collector
