"""A decode engine on a fake transport, and what its requests got."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from wavepp_worker import token_ids
from wavepp_worker.decode.engine import DecodeEngine
from wavepp_worker.decode.engine_io import DecodeOutput, DecodeRequest
from wavepp_worker.handoff.offer import BootstrapAddress
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling_params import SamplingParams

from tests.support.fake_transport import FakePrefill, Room
from tests.support.waiting import WAIT_SECONDS, wait_until


class Collector:
    """Takes one request's outputs."""

    def __init__(self) -> None:
        self.outputs: list[DecodeOutput] = []
        self.done = threading.Event()

    def __call__(self, output: DecodeOutput) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.done.set()

    def check(self) -> None:
        """Exactly one output has a finish reason, and it is the last."""
        reasons = [output.finish_reason for output in self.outputs]
        assert None not in reasons[-1:], reasons
        assert set(reasons[:-1]) <= {None}, reasons

    @property
    def tokens(self) -> list[SampledToken]:
        return [token for output in list(self.outputs) for token in output.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.token for token in self.tokens]

    @property
    def last(self) -> DecodeOutput:
        assert self.done.wait(WAIT_SECONDS), "no output with a finish reason"
        return self.outputs[-1]

    @property
    def reason(self) -> str | None:
        return self.last.finish_reason

    def wait_for_tokens(self, count: int) -> None:
        wait_until(lambda: len(self.tokens) >= count or self.done.is_set())
        assert len(self.tokens) >= count


@dataclass
class DecodeBench:
    """A started engine with the fake transport, and what tests say about it."""

    engine: DecodeEngine
    prefill: FakePrefill
    deaths: list[str]
    submitted: int = 0
    collectors: list[Collector] = field(default_factory=list)

    def submit(self, tokens: np.ndarray, at: BootstrapAddress | None = None, **values: Any) -> Collector:
        """Submit a request named ``r0``, ``r1``, …; its room is open unless ``at`` names another."""
        collector = Collector()
        self.engine.submit(self.request(tokens, at, **values), collector)
        self.collectors.append(collector)
        return collector

    def request(self, tokens: np.ndarray, at: BootstrapAddress | None = None, **values: Any) -> DecodeRequest:
        fields: dict[str, Any] = {"request_id": f"r{self.submitted}", "max_tokens": 12, **values}
        self.submitted += 1
        sampling = values.get("sampling", SamplingParams())
        handoff = at or self.prefill.room(tokens, sampling=sampling)
        return DecodeRequest(tokens=token_ids.pack(tokens), handoff=handoff, **fields)

    def room(self, at: BootstrapAddress) -> Room:
        return self.prefill.rooms[at.room]
