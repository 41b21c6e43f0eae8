"""Sends drawn requests to a graph's frontend, several at a time, while a plain client keeps asking."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests.fuzz.findings import Findings
from tests.fuzz.http_client import HttpAnswer, send
from tests.fuzz.http_requests import HttpRequest, http_requests
from tests.fuzz.target import Target

AT_ONCE = 8
ANSWER_SECONDS = 90.0
"""Bound of any answer, on a machine that is busy."""
BATCHES_PER_CHECK = 10
"""A plain client asks, and processes are looked at, once every so many batches."""


class HttpCampaign:
    """The requests sent so far, and what came of them.

    Attributes:
        outcomes: requests by status, or by how their client left.
        slowest: seconds of the longest answer.
    """

    def __init__(self, target: Target, findings: Findings) -> None:
        self._target = target
        self._findings = findings
        self.outcomes: Counter[str] = Counter()
        self.slowest = 0.0

    def run(self, requests: int, seed: int, advance: Callable[[int], None] = lambda _: None) -> None:
        """Send about ``requests`` requests, drawn from ``seed``; then look at everything.

        Args:
            advance: told how many more requests have been sent.
        """
        batches = 0

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=max(1, requests // AT_ONCE),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(
            st.lists(http_requests(self._target.graph.running.model), min_size=AT_ONCE, max_size=AT_ONCE)
        )
        def attack(batch: list[HttpRequest]) -> None:
            nonlocal batches
            asyncio.run(self._send_all(batch))
            batches += 1
            if batches % BATCHES_PER_CHECK == 0:
                self._look(batch)
            advance(len(batch))

        attack()
        self._target.check(self._findings, f"{batches} batches of requests with seed {seed}")

    def _look(self, batch: list[HttpRequest]) -> None:
        wrong = self._target.deaths() or self._target.plain()
        if wrong is not None:
            self._findings.add(wrong, "one of " + "\n  ".join(map(str, batch)))

    async def _send_all(self, batch: list[HttpRequest]) -> None:
        await asyncio.gather(*(self._send(request) for request in batch))

    async def _send(self, request: HttpRequest) -> None:
        host, port = self._target.address
        try:
            answer = await send(host, port, request, ANSWER_SECONDS)
        except OSError as error:
            self._findings.add(f"the frontend takes no connection: {error}", request)
            return
        self.outcomes[outcome(request, answer)] += 1
        self.slowest = max(self.slowest, answer.seconds)
        if answer.late:
            self._findings.add(f"no answer within {ANSWER_SECONDS:.0f} s", request)
        elif answer.failed:
            self._findings.add(f"answered with {answer.status}: {_words(answer.raw)}", request)
        elif answer.status is None and request.manner == "whole":
            self._findings.add("hung up on without an answer", request)


def outcome(request: HttpRequest, answer: HttpAnswer) -> str:
    """How a request counts in the summary."""
    if request.manner != "whole":
        return request.manner.replace("leave", "left")
    return "no status" if answer.status is None else str(answer.status)


def _words(raw: bytes) -> str:
    """The last part of an answer without what differs from one time to the next."""
    text = raw[-300:].decode(errors="replace").replace("\r\n", " ").replace("\n", " ")
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "#", text)
