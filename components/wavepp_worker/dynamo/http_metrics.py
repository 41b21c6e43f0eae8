"""How clients were answered, whoever answered them: Dynamo's own metrics lack what its frontend never saw."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, generate_latest

from wavepp_worker.dynamo.metrics import METRIC_PREFIX
from wavepp_worker.dynamo.openai_checks import CHECKED_PATHS

METRICS_PATH = "/metrics"
OTHER_PATHS = "other"


class HttpMetrics:
    """Counts the answers of the frontend's HTTP server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._responses = Counter(
            METRIC_PREFIX + "http_responses",
            "Answers to clients, by path and HTTP status; 499 are clients that left before.",
            ["path", "code"],
            registry=self.registry,
        )

    def answered(self, path: str, status: int) -> None:
        """Count an answer. Paths that clients make up are counted together."""
        self._responses.labels(path if path in CHECKED_PATHS else OTHER_PATHS, str(status)).inc()

    def text(self) -> bytes:
        """As Prometheus reads it, to follow what Dynamo's frontend says."""
        return generate_latest(self.registry)
