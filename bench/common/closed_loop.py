"""Clients in a closed loop against one engine: each sends its next prompt when the last one is answered."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker.runtime.client.engine import PrefillEngine
from wavepp_worker.runtime.client.prompts import pack_tokens
from wavepp_worker.runtime.protocol.requests import PrefillRequest, PrefillResult

from bench.common.percentile import p95


@dataclass(frozen=True)
class Load:
    """What a closed loop measured; times in seconds, tokens are prompt tokens including reused ones."""

    seconds: float
    tokens: int
    reused: int
    completion: tuple[float, ...]
    queued: tuple[float, ...]
    admission: tuple[float, ...]
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


def closed_loop(
    engine: PrefillEngine, prompts: Sequence[Sequence[int]], concurrency: int, name: str = "load"
) -> Load:
    """Send every prompt, ``concurrency`` at a time, and wait for all answers.

    Raises:
        WaveppError: a prompt failed.
    """
    slots = threading.Semaphore(concurrency)
    before = engine.stats()
    begun = time.perf_counter()
    futures = []
    for index, prompt in enumerate(prompts):
        slots.acquire()
        request = PrefillRequest(request_id=f"{name}-{index}", tokens=pack_tokens(prompt))
        future = engine.submit(request)
        future.add_done_callback(lambda _: slots.release())
        futures.append(future)
    results: list[PrefillResult] = [future.result() for future in futures]
    seconds = time.perf_counter() - begun
    time.sleep(0.6)
    after = engine.stats()
    return Load(
        seconds=seconds,
        tokens=sum(result.prompt_tokens for result in results),
        reused=sum(result.reused_tokens for result in results),
        completion=tuple(result.timings.total for result in results),
        queued=tuple(result.timings.queued for result in results),
        admission=tuple(result.timings.admission for result in results),
        rounds=after.rounds - before.rounds,
        waves=after.waves - before.waves,
    )
