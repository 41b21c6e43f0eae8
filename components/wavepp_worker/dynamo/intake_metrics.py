"""Prometheus metrics of the jobs that a worker takes from a queue."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wavepp_worker.dynamo.metrics import METRIC_PREFIX
from wavepp_worker.intake.intake_counts import IntakeCounts


class IntakeMetrics(Collector):
    """Reads a replica's counts when Prometheus asks."""

    def __init__(self, counts: IntakeCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        gauges = {
            "jobs_held": ("Jobs taken from the queue and not over.", counts.held),
            "jobs_waiting": ("Of these, jobs that are not admitted.", counts.waiting),
            "jobs_queued": ("Jobs in the queue that no replica has taken.", counts.queued),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(METRIC_PREFIX + name, text, value=value)
        yield CounterMetricFamily(
            METRIC_PREFIX + "jobs_stolen",
            "Jobs that addressed another replica, which did not take them in time.",
            value=counts.stolen,
        )
        ended = CounterMetricFamily(
            METRIC_PREFIX + "jobs", "Deliveries of jobs that ended, by outcome.", labels=["outcome"]
        )
        for outcome, number in list(counts.outcomes.items()):
            ended.add_metric([outcome], number)
        yield ended
