from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import zmq
from wavepp_worker.liveness.watchdog import Watchdog
from wavepp_worker.model.inspection import inspect_model
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.runtime.admission.wave_gate import WaveGate
from wavepp_worker.runtime.rank import build
from wavepp_worker.runtime.rank.build import Context, load_device, make_rank, make_threads, window_memories
from wavepp_worker.runtime.trace.recorder import Recorder

from tests.runtime.tiers.test_tier_store import rank_config
from tests.support.rank_books import Events


@pytest.mark.parametrize("layers", [range(0, 1), range(1, 2), range(0, 2)])
def test_a_rank_has_a_window_for_each_way_its_layers_keep_tokens(
    layers: range, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    stage = load_stage(tiny_model("gpt_oss"), layers, torch.float32, "cpu")
    windows = window_memories(rank_config(tmp_path, blocks=4, keeps_keys=False), stage, stage.make_kv(4, 4))
    assert {spec.kind for spec, _ in windows} == {"sliding" if each % 2 == 0 else "full" for each in layers}


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3_text", "qwen3_next"])
def test_tiers_take_the_bytes_that_an_inspection_says(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """All but those of states, which are counted by themselves."""
    stage = load_stage(tiny_model(family), range(2, 6), torch.float32, "cpu")
    kv = stage.make_kv(50, 4, 1)
    config = rank_config(tmp_path, blocks=50, host_blocks=90, disk_blocks=40)
    windows = [
        (spec, memory) for spec, memory in window_memories(config, stage, kv) if spec.kind != "recurrent"
    ]
    held = [
        sum(blocks * memory.block_bytes for blocks, memory in tier)
        for tier in (
            [(spec.host_blocks, memory) for spec, memory in windows],
            [(spec.disk_blocks, memory) for spec, memory in windows],
        )
    ]
    said = inspect_model(tiny_model(family), pp=2, partition=(2, 4), dtype="float32").stages[1]
    whole = said.cache_bytes
    assert whole is not None
    assert held == [said.tier_bytes(361, 4), said.tier_bytes(163, 4)]
    assert (held[0] < 360 * whole) == (family in ("gpt_oss", "gemma3_text"))


def test_rank_0_keeps_account_of_prompts_where_no_layer_of_it_keeps_every_token(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    stage = load_stage(tiny_model("gpt_oss"), range(0, 1), torch.float32, "cpu")
    kv = stage.make_kv(4, 4)

    def windows(**changes: object) -> list[tuple[str, bool, int]]:
        made = window_memories(rank_config(tmp_path, blocks=4, host_blocks=7, **changes), stage, kv)
        return [(spec.kind, spec.keys_only, memory.block_bytes) for spec, memory in made]

    assert windows(keeps_keys=False) == [("sliding", False, 4 * kv.bytes_per_token)]
    assert windows(keeps_keys=True) == [("full", True, 1), ("sliding", False, 4 * kv.bytes_per_token)]


def test_a_rank_on_a_gpu_says_how_it_computes_and_passes_on(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def load(directory: Path, layers: range, dtype: torch.dtype, device: str, *rest: Any) -> Any:
        asked.append(device)
        return load_stage(directory, layers, dtype, "cpu", *rest)

    monkeypatch.setattr(build, "load_stage", load)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    config = rank_config(tmp_path, model=str(tiny_llama), rank=3, ranks=4, layers=(1, 3), threads=1, blocks=4)
    config = msgspec.structs.replace(config, dtype="float32", activations="socket")
    on_cpu = load_device(msgspec.structs.replace(config, device="cpu"))
    copied = load_device(msgspec.structs.replace(config, device="cuda"))
    stays = load_device(msgspec.structs.replace(config, device="cuda", activations="nccl"))
    shared = load_device(msgspec.structs.replace(config, device="cuda", activations="ipc"))
    assert asked == ["cpu", *["cuda:1"] * 6]
    stay = [each.stage.activations_stay for each in (on_cpu, copied, stays, shared)]
    assert stay == [False, False, True, True]
    first, second, third = caplog.messages
    assert "layers 1 to 2 are computed on cuda:1" in first
    assert "scaled_dot_product_attention over gathered pages, chunk by chunk" in first
    assert "page-locked memory and a socket" in first
    assert "by NCCL from GPU to GPU" in second
    assert "by memory of a GPU that both ranks open" in third


@pytest.mark.parametrize("shared", [True, False])
def test_activations_go_to_host_memory_if_ranks_cannot_share_a_gpus(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    asked: list[dict[str, Any]] = []
    plane = object() if shared else None

    def opened(*args: Any, **values: Any) -> Any:
        asked.append({"wave_bytes": args[5], **values})
        return plane

    monkeypatch.setattr(build, "open_ipc_plane", opened)
    config = rank_config(tmp_path, model=str(tiny_llama), layers=(1, 3), threads=1, blocks=4, device="cpu")
    config = msgspec.structs.replace(
        config,
        dtype="float32",
        activations="ipc",
        or_socket=True,
        max_num_batched_tokens=32,
        wait=1.0,
        first_wave_timeout=1.0,
    )
    device: Any = load_device(config)
    assert build._tensor_plane(config, zmq.Context.instance(), device) is plane
    assert device.stage.activations_stay is shared
    assert asked == [{"wave_bytes": 32 * 64 * 4, "or_none": True}]


def test_a_rank_reports_where_its_executor_was_idle_and_bounds_its_waves_as_configured(
    tiny_llama: Path, tmp_path: Path
) -> None:
    config = rank_config(
        tmp_path,
        model=str(tiny_llama),
        device="cpu",
        layers=(1, 3),
        threads=1,
        blocks=4,
        disk_blocks=0,
        ownership="lease",
        handoff="none",
        activations="socket",
        rounds=("inproc://rounds",),
        data=("inproc://data-0", "inproc://data-1"),
        wait=10.0,
        wave_timeout=5.0,
        first_wave_timeout=50.0,
    )
    events, gate, recorder = Events(), WaveGate(config.wait), Recorder()
    device = load_device(config)
    parts = make_rank(config, device, events, gate, recorder)
    context: Context = zmq.Context()

    def fail(error: BaseException) -> None:
        raise error

    threads = make_threads(
        config, context, device, parts, events, gate, recorder.timeline, fail, Watchdog(fail)
    )
    try:
        assert threads.executor.idle is parts.reports.idle, "else heartbeats say that it never waited"
        bound = threads.executor._bound
        assert bound.seconds(1.0) == 50.0
        bound.observe(1.0, 0.1)
        assert bound.seconds(1.0) == 5.0
    finally:
        threads.executor.close()
        device.tiers.close()
        context.destroy(linger=0)
