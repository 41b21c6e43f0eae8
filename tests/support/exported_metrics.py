"""What our processes export to Prometheus, and what Dynamo does beside it, without a graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec
from dynamo import prometheus_names
from prometheus_client import Metric
from wavepp_worker.cache.results import TierFigures
from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.dynamo.http_metrics import HttpMetrics
from wavepp_worker.dynamo.intake_metrics import IntakeMetrics, RemoteMetrics
from wavepp_worker.dynamo.metrics import DecodeMetrics, PrefillMetrics
from wavepp_worker.handoff.decode.received import Moments
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.load import RankLoad
from wavepp_worker.runtime.protocol.requests import (
    HandedOff,
    PrefillResult,
    RankHandedOff,
    StageTiming,
    Timings,
)

from tests.support.fake_engines import FakeDecodeEngine, FakePrefillEngine

OUTSIDE_NAMES = frozenset({"dynamo_rejection_request_total"})
"""Metrics of Dynamo that its own list lacks."""
ENDINGS = {
    "counter": {"_total", "_created"},
    "histogram": {"_bucket", "_sum", "_count", "_created"},
    "gauge": {""},
}


def _prefill() -> PrefillMetrics:
    """Of a replica that has prefilled and handed off one prompt, and takes jobs as well."""
    rank = RankLoad(1.0, (TierFigures(64, 60),), {"admission": 1.0})
    stats = msgspec.structs.replace(FakePrefillEngine(None).stats(), ranks=(rank,))
    metrics = PrefillMetrics(lambda: stats, lambda: 0)
    timings = Timings(queued=0.0, admission=0.0, execution=0.0, total=0.0, stages=(StageTiming(0, 0.0),))
    first = SampledToken(1)
    result = PrefillResult(request_id="r", first=first, prompt_tokens=4, reused_tokens=2, timings=timings)
    metrics.finished(result, offered_bytes=1)
    ended = HandedOff(request_id="r", answered=0.0, ranks=(RankHandedOff(0, "received", 0.0),))
    metrics.handed_off(ended)
    counts = IntakeCounts()
    counts.ended("finished")
    metrics.show(IntakeMetrics(counts))
    metrics.show(RemoteMetrics(RemotePrefill(RemotePrefillConfig(), QueueName("", ""))))
    return metrics


def _decode() -> DecodeMetrics:
    """Of a worker that has answered one prompt."""
    metrics = DecodeMetrics(FakeDecodeEngine(None).stats)
    metrics.ended("stop")
    moments = Moments(began=0.0, offered=0.0, prefilled=0.0, ended=0.0)
    metrics.arrived(Arrived(moments=moments, bytes_received=1, ranks=1))
    return metrics


def _families() -> Iterator[Metric]:
    http = HttpMetrics()
    http.answered("/v1/models", 200)
    for registry in (_prefill().registry, _decode().registry, http.registry):
        yield from registry.collect()


@cache
def exported() -> dict[str, set[str]]:
    """The names of our metrics, and of each its samples."""
    return {family.name: {family.name + ending for ending in ENDINGS[family.type]} for family in _families()}


@cache
def labels() -> dict[str, set[str]]:
    """The labels of every sample of our metrics."""
    return {sample.name: set(sample.labels) for family in _families() for sample in family.samples}


@cache
def dynamos_names() -> set[str]:
    """The names of Dynamo's metrics."""
    groups = [vars(group) for group in vars(prometheus_names).values() if isinstance(group, type)]
    words = {value for group in groups for value in group.values() if isinstance(value, str)}
    prefixes = {value for value in vars(prometheus_names.name_prefix).values() if isinstance(value, str)}
    return {f"{prefix}_{word}" for prefix in prefixes for word in words} | OUTSIDE_NAMES
