from __future__ import annotations

import threading

from wavepp_worker.dynamo.load_snapshots import INTERVAL_SECONDS, SnapshotThread, load_snapshot


def test_a_snapshot_has_the_load_and_the_hit_rate() -> None:
    snapshot = load_snapshot(16, 64, prompt_tokens=10, reused_tokens=4)
    assert (snapshot.kv_used_blocks, snapshot.kv_total_blocks, snapshot.gpu_cache_usage) == (16, 64, 0.25)
    assert (snapshot.dp_rank, snapshot.kv_cache_hit_rate) == (0, 0.4)


def test_no_prompts_is_no_hit_rate_and_no_hits_is_zero() -> None:
    assert load_snapshot(0, 0).kv_cache_hit_rate is None
    assert load_snapshot(0, 1, prompt_tokens=10).kv_cache_hit_rate == 0.0


def test_the_thread_publishes_until_it_is_closed() -> None:
    published = threading.Event()
    thread = SnapshotThread(published.set)
    thread.start()
    assert published.wait(5)
    thread.close()
    thread.close()
    published.clear()
    assert not published.wait(2 * INTERVAL_SECONDS)
    SnapshotThread(published.set).close()
