"""Prometheus metrics of the jobs that a worker takes from a queue."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wavepp_worker.dynamo.metrics import METRIC_PREFIX
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.remote_prefill import RemotePrefill


class RemoteMetrics(Collector):
    """Reads what a decode worker has prefilled through a queue when Prometheus asks."""

    def __init__(self, remote: RemotePrefill) -> None:
        self._remote = remote

    def collect(self) -> Iterator[Metric]:
        counters = {
            "remote_prefills": ("Prompts that were sent to the queue to be prefilled.", self._remote.sent),
            "remote_prefills_addressed": (
                "Of these, prompts whose job addressed the replica that the router chose.",
                self._remote.addressed,
            ),
            "remote_prefills_returned": (
                "Of all sent, prompts prefilled here after all.",
                self._remote.returned,
            ),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(METRIC_PREFIX + name, text, value=value)


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
