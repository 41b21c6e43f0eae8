"""What is refused before weights are read, in the words of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker import EngineConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.model_shape import ModelShape
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.client.start_checks import check_start
from wavepp_worker.runtime.rank.build import load_device

SHAPE = ModelShape(num_layers=6, context_length=1024, dtype="float32", has_chat_template=True)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"pp": 7}, "pp: 7 stages cannot share 6 layers; use a number from 1 to 6"),
        ({"pp": 2, "partition": (3, 4)}, "partition: 3,4 adds up to 7 layers but the model has 6"),
        ({"pp": 2, "partition": (-1, 7)}, "partition: -1,7 leaves a stage without layers"),
        (
            {"kv_tokens": 512},
            "kv_tokens gives rank 0 a pool of 512 tokens, too small for one request of 1024",
        ),
        ({"kv_tokens": -1}, "kv_tokens: should be at least 1, not -1"),
        ({"pp": 2, "kv_tokens": (2048,)}, "kv_tokens lists 1 pools for pp=2"),
        ({"host_kv_tokens": -1}, "host_kv_tokens: should be at least 0, not -1"),
        ({"disk_kv_tokens": 64}, "disk_kv_tokens asks for a disk tier, but disk_path is not set"),
        ({"disk_path": "/cache"}, "disk_path is /cache, but disk_kv_tokens is less than one block"),
        (
            {"disk_path": "/etc/passwd/x", "disk_kv_tokens": 64},
            "disk_path is /etc/passwd/x, but /etc/passwd is not a directory",
        ),
        ({"max_model_len": 1025}, "max_model_len is 1025, but the model's context length is 1024"),
        ({"device": "gpu"}, "device: 'gpu' is none"),
        ({"host": "203.0.113.7", "handoff": "socket"}, "host: 203.0.113.7 is not an address of this machine"),
        ({"timeline": "/no/where.json"}, "timeline is /no/where.json, but /no is not a directory"),
        ({"order": "prefix", "ownership": "none"}, "order=prefix needs ownership=lease"),
        ({"admission": "lockstep", "ownership": "lease"}, "ownership=lease needs admission=wave"),
        (
            {"order": "fcfs", "order_max_passed_tokens": 7},
            "order_max_passed_tokens: with order=fcfs, which is the default without ownership=lease, nobody passes",
        ),
        (
            {"ownership": "none", "order_max_passed_tokens": 0},
            "order_max_passed_tokens: with order=fcfs, which is the default without",
        ),
        (
            {"planner": "greedy", "min_num_batched_tokens": 32},
            "min_num_batched_tokens: planner=greedy does not use it; leave it out, or set planner to throttle or ",
        ),
        ({"min_num_batched_tokens": 600}, "min_num_batched_tokens: 600 is no multiple of block_size=16"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens: 8 is no multiple of block_size=16"),
        (
            {"min_num_batched_tokens": 608},
            "min_num_batched_tokens: the smallest waves, 608 tokens, are larger than",
        ),
        ({"wave_cost": (-1, 1, 1)}, "wave_cost: a stage needs seconds"),
    ],
)
def test_each_is_refused_and_begins_with_its_key(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_start(EngineConfig(model=Path("/m"), **values), SHAPE)
    assert str(caught.value).startswith(sentence)


def test_what_works_passes_and_unknown_sizes_are_left_to_the_load(tmp_path: Path) -> None:
    fine = {"pp": 2, "partition": (2, 4), "disk_kv_tokens": 64, "disk_path": tmp_path / "made" / "later"}
    check_start(EngineConfig(model=Path("/m"), **fine), SHAPE)
    assert not (tmp_path / "made").exists()
    check_start(
        EngineConfig(model=Path("/m"), pp=99), ModelShape(None, None, "float32", has_chat_template=True)
    )


def test_a_torch_that_sees_no_gpu_is_a_sentence(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    [rank] = rank_configs(
        EngineConfig(model=tiny_llama, device="cuda"), read_model_info(tiny_llama), tmp_path
    )
    with pytest.raises(ConfigError, match=r"^device: cuda is asked for, but torch .* sees no GPU"):
        load_device(rank)


def test_a_rank_takes_the_memory_that_the_kv_dtype_says(tiny_llama: Path, tmp_path: Path) -> None:
    config = EngineConfig(model=tiny_llama, dtype="float32", kv_dtype="fp8")
    device = load_device(rank_configs(config, read_model_info(tiny_llama), tmp_path)[0])
    # Two heads of 16, keys and values, and a scale for each, in six layers.
    assert (device.stage.kv_dtype, device.kv.bytes_per_token) == (torch.float8_e4m3fn, 6 * 2 * 2 * (16 + 4))
