from __future__ import annotations

from wavepp_worker.dynamo.http_metrics import HttpMetrics


def test_answers_are_counted_by_path_and_status_and_paths_that_clients_make_up_together() -> None:
    metrics = HttpMetrics()
    for path, status in (("/v1/completions", 200), ("/v1/completions", 503), ("/a", 404), ("/b", 404)):
        metrics.answered(path, status)
    text = metrics.text().decode()
    assert 'wavepp_http_responses_total{code="200",path="/v1/completions"} 1.0' in text
    assert 'wavepp_http_responses_total{code="503",path="/v1/completions"} 1.0' in text
    assert 'wavepp_http_responses_total{code="404",path="other"} 2.0' in text
