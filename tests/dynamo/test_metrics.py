from __future__ import annotations

import msgspec
from prometheus_client import generate_latest
from wavepp_worker.cache.results import TierFigures
from wavepp_worker.decode.engine_io import Arrived
from wavepp_worker.dynamo.metrics import DecodeMetrics, PrefillMetrics
from wavepp_worker.errors import EngineDead
from wavepp_worker.handoff.decode.received import Moments
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


def test_each_rank_shows_how_long_it_computed_and_the_tiers_it_has() -> None:
    device, host = TierFigures(64, 60, evicted=3, lost=1), TierFigures(8, 7, offloaded=9, onboarded=2)
    idle = {"admission": 0.5, "upstream": 0.25}
    loads = (RankLoad(1.5, (device, host, TierFigures(0, 0))), RankLoad(2.5, (), idle))
    stats = msgspec.structs.replace(FakePrefillEngine(None).stats(), ranks=loads)
    text = generate_latest(PrefillMetrics(lambda: stats, lambda: 0).registry).decode()
    for line in (
        'wavepp_rank_busy_seconds_total{rank="0"} 1.5',
        'wavepp_rank_busy_seconds_total{rank="1"} 2.5',
        'wavepp_rank_idle_seconds_total{cause="admission",rank="1"} 0.5',
        'wavepp_rank_idle_seconds_total{cause="upstream",rank="1"} 0.25',
        'wavepp_tier_used_blocks{rank="0",tier="device"} 60.0',
        'wavepp_tier_total_blocks{rank="0",tier="host"} 8.0',
        'wavepp_tier_offloaded_blocks_total{rank="0",tier="host"} 9.0',
        'wavepp_tier_onboarded_blocks_total{rank="0",tier="host"} 2.0',
        'wavepp_tier_evicted_blocks_total{rank="0",tier="device"} 3.0',
        'wavepp_tier_lost_blocks_total{rank="0",tier="device"} 1.0',
        'wavepp_tier_off{rank="0",tier="device"} 0.0',
    ):
        assert line in text.splitlines()
    assert 'tier="disk"' not in text, "there is none"


def test_decode_metrics_show_that_no_prompt_was_computed() -> None:
    metrics = DecodeMetrics(FakeDecodeEngine(None).stats)
    metrics.ended("stop")
    text = generate_latest(metrics.registry).decode()
    assert "wavepp_decode_prompt_tokens_computed_total 0.0" in text
    assert "wavepp_decode_kv_received_bytes_total 7.0" in text
    assert 'wavepp_decode_requests_total{outcome="stop"} 1.0' in text


def test_hand_offs_are_timed_on_both_sides() -> None:
    prefill = PrefillMetrics(FakePrefillEngine(None).stats, lambda: 0)
    ranks = (RankHandedOff(1, "received", 9.0), RankHandedOff(0, "received", 10.25))
    prefill.handed_off(HandedOff(request_id="r", answered=10.0, ranks=ranks))
    text = generate_latest(prefill.registry).decode()
    assert 'wavepp_handoff_seconds_sum{outcome="received"} 0.25' in text
    decode = DecodeMetrics(FakeDecodeEngine(None).stats)
    moments = Moments(began=1.0, offered=1.5, prefilled=4.0, ended=5.0)
    decode.arrived(Arrived(moments=moments, bytes_received=7, ranks=2))
    text = generate_latest(decode.registry).decode()
    for part, seconds in (("offer", 0.5), ("pull", 3.5), ("tail", 1.0)):
        assert f'wavepp_decode_handoff_seconds_sum{{part="{part}"}} {seconds}' in text
