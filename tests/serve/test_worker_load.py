from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from wavepp_worker.decode.engine_io import DecodeStats
from wavepp_worker.dynamo.intake_metrics import IntakeMetrics, RemoteMetrics
from wavepp_worker.dynamo.metrics import DecodeMetrics, PrefillMetrics
from wavepp_worker.intake.intake_counts import IntakeCounts
from wavepp_worker.intake.names import QueueName
from wavepp_worker.intake.remote_config import RemotePrefillConfig
from wavepp_worker.intake.remote_prefill import RemotePrefill
from wavepp_worker.runtime.protocol.load import EngineStats
from wavepp_worker.serve.worker_load import load_lines

PREFILL = EngineStats(
    queued=5,
    running=2,
    holding=1,
    used_blocks=41,
    total_blocks=100,
    prompt_tokens=20000,
    reused_tokens=12600,
    finished=9,
    failed=0,
    waves=3,
    rounds=4,
    last_wave_age=0.5,
)
DECODE = DecodeStats(
    running=3,
    waiting=1,
    receiving=2,
    used_blocks=1,
    total_blocks=8,
    prompt_tokens_computed=0,
    kv_bytes_received=7,
    tokens_generated=1234,
    steps=500,
    preemptions=0,
)
PREFILL_LINE = (
    "prefill now: 2 running, 5 waiting, 1 handing KV off; requests hold 41 % of KV; "
    "since its start 63 % of 20,000 prompt tokens reused"
)
DECODE_LINE = (
    "decode now: 3 running, 1 waiting, 2 receiving KV; requests hold 12 % of KV; "
    "since its start 1,234 tokens generated"
)


def test_each_engine_of_a_worker_has_a_line() -> None:
    prefill = generate_latest(PrefillMetrics(lambda: PREFILL, lambda: 0).registry).decode()
    decode = generate_latest(DecodeMetrics(lambda: DECODE).registry).decode()
    assert load_lines(prefill) == [PREFILL_LINE]
    assert load_lines(decode) == [DECODE_LINE]
    assert load_lines(f"what Dynamo says {{\n{prefill}{decode}") == [PREFILL_LINE, DECODE_LINE]


def test_a_queue_has_a_line_on_either_side() -> None:
    counts, registry = IntakeCounts(), CollectorRegistry()
    counts.held, counts.waiting, counts.queued = 3, 1, 1200
    registry.register(IntakeMetrics(counts))
    assert load_lines(generate_latest(registry).decode()) == [
        "jobs now: 3 taken, 1 of them waiting; 1200 in the queue"
    ]
    remote, registry = RemotePrefill(RemotePrefillConfig(), QueueName("a", "b")), CollectorRegistry()
    remote.sent, remote.returned = 1234, 5
    registry.register(RemoteMetrics(remote))
    assert load_lines(generate_latest(registry).decode()) == [
        "since its start 1,234 prompts sent to the queue, of which 5 came back"
    ]


def test_who_has_no_metrics_has_no_line_and_who_did_nothing_has_zeros() -> None:
    assert load_lines("") == []
    assert "hold 0 % of KV; since its start 0 % of 0" in load_lines("wavepp_running_requests 0.0\n")[0]
