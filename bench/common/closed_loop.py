"""Clients in a closed loop against one engine: each sends its next prompt when the last one is answered."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from wavepp_worker import PrefillEngine
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

from bench.common.percentile import p95

HEARTBEAT = 0.6
"""Seconds after which the ranks' totals have come to the engine."""


@dataclass(frozen=True)
class LoopFigures:
    """What a closed loop measured; times in seconds of this machine, tokens are prompt tokens.

    Attributes:
        tokens: reused ones included.
        completion: of every request.
        rounds: admission rounds.
    """

    seconds: float
    tokens: int
    reused: int
    completion: tuple[float, ...]
    rounds: int
    waves: int

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds

    @property
    def p50(self) -> float:
        return statistics.median(self.completion)

    @property
    def p95(self) -> float:
        return p95(self.completion)


def send_all(
    engine: PrefillEngine, prompts: Iterable[bytes], concurrency: int, name: str
) -> list[PrefillResult]:
    """Send every prompt (packed token ids), ``concurrency`` at a time, and wait for all answers.

    Raises:
        WaveppError: a prompt failed.
    """
    slots = threading.Semaphore(concurrency)
    futures = []
    for index, tokens in enumerate(prompts):
        slots.acquire()
        future = engine.submit(PrefillRequest(request_id=f"{name}-{index}", tokens=tokens))
        future.add_done_callback(lambda _: slots.release())
        futures.append(future)
    return [future.result() for future in futures]


def closed_loop(engine: PrefillEngine, prompts: Iterable[bytes], concurrency: int, name: str) -> LoopFigures:
    """Send every prompt (packed token ids), ``concurrency`` at a time, and measure until all are answered.

    Raises:
        WaveppError: a prompt failed.
    """
    before, begun = engine.stats(), time.perf_counter()
    results = send_all(engine, prompts, concurrency, name)
    seconds = time.perf_counter() - begun
    time.sleep(HEARTBEAT)
    after = engine.stats()
    return LoopFigures(
        seconds=seconds,
        tokens=sum(result.prompt_tokens for result in results),
        reused=sum(result.reused_tokens for result in results),
        completion=tuple(result.timings.total for result in results),
        rounds=after.rounds - before.rounds,
        waves=after.waves - before.waves,
    )
