from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from wavepp_worker.dynamo.intake_metrics import IntakeMetrics, RemoteMetrics
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill


def test_what_a_decode_worker_counts_is_shown() -> None:
    remote, registry = RemotePrefill(RemotePrefillConfig(), QueueName("a", "b")), CollectorRegistry()
    registry.register(RemoteMetrics(remote))
    remote.sent, remote.addressed, remote.returned = 3, 2, 1
    shown = generate_latest(registry).decode().splitlines()
    assert "wavepp_remote_prefills_total 3.0" in shown
    assert "wavepp_remote_prefills_addressed_total 2.0" in shown
    assert "wavepp_remote_prefills_returned_total 1.0" in shown


def test_what_a_replica_counts_is_shown() -> None:
    counts, registry = IntakeCounts(), CollectorRegistry()
    registry.register(IntakeMetrics(counts))
    counts.held, counts.waiting, counts.queued, counts.stolen = 3, 2, 7, 1
    for outcome in ("finished", "finished", "invalid"):
        counts.ended(outcome)
    shown = generate_latest(registry).decode().splitlines()
    for line in (
        "wavepp_jobs_held 3.0",
        "wavepp_jobs_waiting 2.0",
        "wavepp_jobs_queued 7.0",
        "wavepp_jobs_stolen_total 1.0",
        'wavepp_jobs_total{outcome="finished"} 2.0',
        'wavepp_jobs_total{outcome="invalid"} 1.0',
    ):
        assert line in shown
