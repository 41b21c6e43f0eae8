from __future__ import annotations

from prometheus_client import generate_latest
from wavepp_worker.dynamo.metrics import DecodeMetrics, PrefillMetrics
from wavepp_worker.errors import EngineDead
from wavepp_worker.model.sampling import SampledToken
from wavepp_worker.runtime.protocol.requests import PrefillResult, StageTiming, Timings

from tests.support.fake_engines import FakeDecodeEngine, FakePrefillEngine


def result(name: str) -> PrefillResult:
    timings = Timings(
        queued=0.1, admission=0.2, execution=0.3, total=0.6, stages=(StageTiming(0, 0.1), StageTiming(1, 0.2))
    )
    return PrefillResult(
        request_id=name, first=SampledToken(1), prompt_tokens=4, reused_tokens=2, timings=timings
    )


def test_prefill_metrics_count_and_time() -> None:
    metrics = PrefillMetrics(FakePrefillEngine(None).stats, lambda: 3, keep=2)
    for name in ("a", "b", "c"):
        metrics.finished(result(name), offered_bytes=40)
    metrics.failed(EngineDead("x"))
    text = generate_latest(metrics.registry).decode()
    for line in (
        'wavepp_prefill_requests_total{outcome="finished"} 3.0',
        'wavepp_prefill_requests_total{outcome="EngineDead"} 1.0',
        'wavepp_prefill_part_seconds_sum{part="admission"} 0.6',
        'wavepp_stage_compute_seconds_count{rank="1"} 3.0',
        "wavepp_handoff_offered_bytes_total 120.0",
        "wavepp_pending_rooms 3.0",
        "wavepp_reused_tokens_total 4.0",
        "wavepp_last_wave_age_seconds 0.5",
    ):
        assert line in text
    assert [entry["request_id"] for entry in metrics.timings(5)] == ["c", "b"]
    assert metrics.timings(1)[0]["stages"][1] == {"rank": 1, "compute": 0.2}


def test_decode_metrics_show_that_no_prompt_was_computed() -> None:
    metrics = DecodeMetrics(FakeDecodeEngine(None).stats)
    metrics.ended("stop")
    text = generate_latest(metrics.registry).decode()
    assert "wavepp_decode_prompt_tokens_computed_total 0.0" in text
    assert "wavepp_decode_kv_received_bytes_total 7.0" in text
    assert 'wavepp_decode_requests_total{outcome="stop"} 1.0' in text
