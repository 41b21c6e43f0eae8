from __future__ import annotations

from typing import Any

import msgspec
from wavepp_worker.serve.banner import banner
from wavepp_worker.worker_description import EngineDescription, RankDescription, WorkerDescription


def process(**given: Any) -> dict[str, Any]:
    return {
        "service": "PrefillWorker",
        "replica": 1,
        "kind": "worker",
        "url": "http://127.0.0.1:20001",
        "pid": 7,
        "ready": True,
        "restarts": 0,
        "about": None,
        **given,
    }


def about(*ranks: RankDescription, role: str = "prefill", **given: Any) -> dict[str, Any]:
    engine = EngineDescription(role=role, dtype="bfloat16", device="cuda", ranks=ranks, **given)
    return msgspec.to_builtins(WorkerDescription(instance="2a", engines=(engine,)))


def test_a_worker_is_told_with_its_ranks_its_tiers_and_its_urls() -> None:
    ranks = (
        RankDescription(layers=16, kv_tokens=32768, bytes_per_token=4096, host_tokens=65536, pid=8),
        RankDescription(layers=14, kv_tokens=32768, bytes_per_token=512, host_tokens=65536, pid=9),
    )
    lines = banner(
        {"processes": [process(about=about(*ranks, bootstrap="127.0.0.1:4242", transport="nixl"))]}
    )
    assert lines == [
        "PrefillWorker:1  http://127.0.0.1:20001  pid 7, worker_id 2a (42)",
        "                 prefill: bfloat16 on cuda, 2 ranks of 16 + 14 layers (pids 8, 9); KV 32,768 tokens a rank "
        "(128 + 16 MiB); host 65,536 tokens a rank (256 + 32 MiB); hand-offs over NIXL at 127.0.0.1:4242",
        "                 metrics http://127.0.0.1:20001/metrics  health http://127.0.0.1:20001/health",
        "                 audit: curl -X POST http://127.0.0.1:20001/engine/control/audit",
        "                 timings: curl -X POST http://127.0.0.1:20001/engine/control/timings",
        "                 why: curl -X POST http://127.0.0.1:20001/engine/control/why",
    ]


def test_pools_of_different_sizes_and_small_ones() -> None:
    ranks = (
        RankDescription(layers=2, kv_tokens=1024, bytes_per_token=0, disk_tokens=0),
        RankDescription(layers=2, kv_tokens=2048, bytes_per_token=768, disk_tokens=4096),
    )
    told = banner({"processes": [process(about=about(*ranks))]})[1]
    assert "KV 1,024 + 2,048 tokens (0.0 + 1.5 MiB); disk 0 + 4,096 tokens (0.0 + 3.0 MiB)" in told
    (whole,) = (RankDescription(layers=4, kv_tokens=1024, bytes_per_token=0),)
    assert banner({"processes": [process(about=about(whole))]})[1].endswith("4 layers; KV 1,024 tokens")


def test_states_of_recurrent_layers_are_told_where_there_are_some() -> None:
    ranks = (
        RankDescription(layers=2, kv_tokens=64, bytes_per_token=0, states=96, state_bytes=3 << 18),
        RankDescription(layers=1, kv_tokens=64, bytes_per_token=512),
    )
    assert banner({"processes": [process(about=about(*ranks))]})[1].endswith(
        "; states 96 (72.0 MiB) + 0 (0.0 MiB)"
    )


def test_a_decode_worker_has_no_timings_to_look_at() -> None:
    (whole,) = (RankDescription(layers=4, kv_tokens=1024, bytes_per_token=0),)
    for role, told in (("decode", False), ("prefill", True)):
        lines = banner({"processes": [process(about=about(whole, role=role))]})
        assert any("timings" in line for line in lines) == told
        assert any("audit" in line for line in lines)


def test_what_is_down_and_what_the_user_should_know() -> None:
    front = process(service="Front", replica=0, kind="frontend", pid=None, ready=False, restarts=1)
    sick = process(ready=False, restarts=3)
    lines = banner({"notes": ["port 8000 is in use, so HTTP is on 8001"], "processes": [front, sick]})
    assert lines[0] == "note: port 8000 is in use, so HTTP is on 8001"
    assert lines[1] == "Front:0          http://127.0.0.1:20001  is about to be started again, 1 restart"
    assert lines[3] == "PrefillWorker:1  http://127.0.0.1:20001  pid 7, not ready, 3 restarts"
    assert not any("audit" in line for line in lines[:3])


def test_what_the_planner_asks_for_and_does_not_get_is_told() -> None:
    planner = {
        "decision": 3,
        "workers": {"PrefillWorker": 9},
        "shortfall": ["9 are asked for, and there are 4"],
    }
    lines = banner({"processes": [process()], "planner": planner})
    assert lines[:2] == [
        "the planner's decision 3: 9 of PrefillWorker",
        "  9 are asked for, and there are 4",
    ]
    undecided = banner({"processes": [process()], "planner": {**planner, "decision": None}})
    assert undecided == banner({"processes": [process()]})
