"""Prometheus metrics of the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wavepp_worker.cache.moves import Tier
from wavepp_worker.decode.engine_io import Arrived, DecodeStats
from wavepp_worker.errors import WaveppError
from wavepp_worker.runtime.protocol.load import EngineStats, RankLoad
from wavepp_worker.runtime.protocol.requests import HandedOff, PrefillResult, Timings

METRIC_PREFIX = "wavepp_"
_BUCKET_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class _Live(Collector):
    """Families whose values are read from an engine when Prometheus asks."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()

    def describe(self) -> list[Metric]:
        """Nothing: asking would call an engine that has not started."""
        return []


class PrefillMetrics:
    """Counts finished and failed prefills, where their time went, and the engine's load."""

    def __init__(
        self, stats: Callable[[], EngineStats], pending_bootstrap_rooms: Callable[[], int], *, keep: int = 256
    ) -> None:
        """Make an empty registry.

        Args:
            stats: of the engine.
            pending_bootstrap_rooms: how many bootstrap rooms are announced and not yet settled.
            keep: of how many of the last requests to keep the timings.
        """
        self._stats = stats
        self._pending_bootstrap_rooms = pending_bootstrap_rooms
        self._last: deque[tuple[str, Timings]] = deque(maxlen=keep)
        self.registry = CollectorRegistry()
        self._requests = Counter(
            METRIC_PREFIX + "prefill_requests",
            "Prefills that ended, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            METRIC_PREFIX + "prefill_seconds",
            "Submission to first token.",
            buckets=_BUCKET_SECONDS,
            registry=self.registry,
        )
        self._parts = Histogram(
            METRIC_PREFIX + "prefill_part_seconds",
            "The parts of prefill_seconds: queued, admission, execution.",
            ["part"],
            buckets=_BUCKET_SECONDS,
            registry=self.registry,
        )
        self._stages = Histogram(
            METRIC_PREFIX + "stage_compute_seconds",
            "Seconds one rank computed the waves one request was part of.",
            ["rank"],
            buckets=_BUCKET_SECONDS,
            registry=self.registry,
        )
        self._offered = Counter(
            METRIC_PREFIX + "handoff_offered_bytes",
            "KV bytes offered to decode workers.",
            registry=self.registry,
        )
        self._handoffs = Histogram(
            METRIC_PREFIX + "handoff_seconds",
            "First token until the last rank holds the KV no more, by how the hand-off ended.",
            ["outcome"],
            buckets=_BUCKET_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Live(self._families))

    def show(self, more: Collector) -> None:
        """Have the registry show ``more`` as well."""
        self.registry.register(more)

    def finished(self, result: PrefillResult, *, offered_bytes: int) -> None:
        """Count a prefill that has its first token."""
        timings = result.timings
        self._last.append((result.request_id, timings))
        self._requests.labels("finished").inc()
        self._seconds.observe(timings.total)
        for part in ("queued", "admission", "execution"):
            self._parts.labels(part).observe(getattr(timings, part))
        for stage in timings.stages:
            self._stages.labels(str(stage.rank)).observe(stage.compute)
        self._offered.inc(offered_bytes)

    def handed_off(self, ended: HandedOff) -> None:
        """Count a hand-off of which no rank holds anything any more; from any thread."""
        self._handoffs.labels(ended.outcome).observe(ended.seconds)

    def failed(self, error: WaveppError) -> None:
        """Count a prefill that failed, under the error's class name."""
        self._requests.labels(type(error).__name__).inc()

    def timings(self, last: int) -> list[dict[str, Any]]:
        """The breakdown of up to ``last`` of the latest requests, newest first."""
        latest = list(self._last)[::-1][:last]
        return [{"request_id": name, **msgspec.to_builtins(timings)} for name, timings in latest]

    def timing(self, request_id: str) -> Timings | None:
        """Where the time of a request went; None if it is none of the latest that finished."""
        return next((timings for name, timings in reversed(self._last) if name == request_id), None)

    def _families(self) -> Iterator[Metric]:
        stats = self._stats()
        gauges = {
            "queued_requests": ("Requests not yet admitted.", stats.queued),
            "running_requests": ("Requests admitted and not finished.", stats.running),
            "handing_off_requests": (
                "Finished requests whose KV is held for a decode worker.",
                stats.holding,
            ),
            "pending_rooms": (
                "Bootstrap rooms announced to decode workers and neither settled nor failed.",
                self._pending_bootstrap_rooms(),
            ),
            "used_blocks": ("KV blocks in use on the fullest rank.", stats.used_blocks),
            "total_blocks": ("KV blocks of the smallest rank.", stats.total_blocks),
            "waves_in_flight": (
                "Waves between their launch on the first rank and their end on the last.",
                stats.waves_in_flight,
            ),
            "last_wave_age_seconds": (
                "Seconds since the last wave, over the ranks the longest.",
                stats.last_wave_age,
            ),
        }
        counters = {
            "prompt_tokens": ("Prompt tokens of finished prefills.", stats.prompt_tokens),
            "reused_tokens": ("Of these, tokens whose KV was reused.", stats.reused_tokens),
            "waves": ("Waves the first rank ran, but for canaries alone.", stats.waves),
            "rounds": ("Rounds of admission, but for canaries alone.", stats.rounds),
            "pipeline_active_seconds": (
                "Seconds in which some wave was in flight, but for canaries alone.",
                stats.active,
            ),
        }
        yield from _families(gauges, counters)
        yield from _rank_families(stats.ranks)


class DecodeMetrics:
    """The decode engine's load and totals, and how requests ended."""

    def __init__(self, stats: Callable[[], DecodeStats]) -> None:
        """Make an empty registry over ``stats`` of the engine."""
        self._stats = stats
        self.registry = CollectorRegistry()
        self._requests = Counter(
            METRIC_PREFIX + "decode_requests",
            "Generations that ended, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self._handoffs = Histogram(
            METRIC_PREFIX + "decode_handoff_seconds",
            "Parts of hand-offs: until the offer, then until all KV is here; tail: of that, after the first token.",
            ["part"],
            buckets=_BUCKET_SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Live(self._families))

    def arrived(self, arrived: Arrived) -> None:
        """Count KV that a prefill worker handed over."""
        moments = arrived.moments
        self._handoffs.labels("offer").observe(moments.offered - moments.began)
        self._handoffs.labels("pull").observe(moments.ended - moments.offered)
        self._handoffs.labels("tail").observe(max(0.0, moments.ended - moments.prefilled))

    def ended(self, outcome: str) -> None:
        """Count an answer that ended; ``outcome`` is its finish reason."""
        self._requests.labels(outcome).inc()

    def _families(self) -> Iterator[Metric]:
        stats = self._stats()
        gauges = {
            "decode_running_requests": ("Requests in the running batch.", stats.running),
            "decode_waiting_requests": ("Requests waiting for KV or for blocks.", stats.waiting),
            "decode_receiving_requests": ("Requests whose KV is arriving.", stats.receiving),
            "decode_used_blocks": ("KV blocks in use.", stats.used_blocks),
            "decode_total_blocks": ("KV blocks of the pool.", stats.total_blocks),
        }
        counters = {
            "decode_prompt_tokens_computed": (
                "Prompt tokens the decode worker ran itself, also those of preempted requests.",
                stats.prompt_tokens_computed,
            ),
            "decode_kv_received_bytes": ("KV bytes received from prefill workers.", stats.kv_bytes_received),
            "decode_tokens_generated": ("Tokens given out, first tokens included.", stats.tokens_generated),
            "decode_steps": ("Forward passes.", stats.steps),
            "decode_preemptions": (
                "Requests that lost their KV blocks to another, and were computed again.",
                stats.preemptions,
            ),
        }
        yield from _families(gauges, counters)


def _rank_families(ranks: Sequence[RankLoad]) -> Iterator[Metric]:
    """What each rank computed, and its blocks by tier; a tier without room has none."""
    busy = CounterMetricFamily(
        METRIC_PREFIX + "rank_busy_seconds", "Seconds a rank computed waves.", labels=["rank"]
    )
    idle = CounterMetricFamily(
        METRIC_PREFIX + "rank_idle_seconds",
        "Seconds a rank computed nothing, by cause.",
        labels=["rank", "cause"],
    )
    labels = ["rank", "tier"]
    gauges = {
        "used": GaugeMetricFamily(METRIC_PREFIX + "tier_used_blocks", "KV blocks in use.", labels=labels),
        "capacity": GaugeMetricFamily(
            METRIC_PREFIX + "tier_total_blocks", "KV blocks there is room for.", labels=labels
        ),
        "off": GaugeMetricFamily(
            METRIC_PREFIX + "tier_off",
            "1 if the tier failed and is not used until the next start.",
            labels=labels,
        ),
    }
    counters = {
        name: CounterMetricFamily(f"{METRIC_PREFIX}tier_{name}_blocks", text, labels=labels)
        for name, text in (
            ("offloaded", "KV blocks that came down to a tier."),
            ("onboarded", "KV blocks that were copied from a tier up to the device."),
            ("evicted", "KV blocks that lost their content on a tier, as others needed the room."),
            ("lost", "KV blocks forgotten on a tier, as they or blocks before them were damaged."),
        )
    }
    for number, rank in enumerate(ranks):
        busy.add_metric([str(number)], rank.busy)
        for cause, seconds in rank.idle.items():
            idle.add_metric([str(number), cause], seconds)
        for tier, figures in zip(Tier, rank.tiers, strict=False):
            if figures.capacity:
                for name, family in (gauges | counters).items():
                    family.add_metric([str(number), tier.name.lower()], getattr(figures, name))
    yield from (busy, idle, *gauges.values(), *counters.values())


def _families(
    gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, float]]
) -> Iterator[Metric]:
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(METRIC_PREFIX + name, text, value=value)
    for name, (text, value) in counters.items():
        yield CounterMetricFamily(METRIC_PREFIX + name, text, value=value)
