"""What is refused, and what is worked out, before a rank is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker import EngineConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.timed.timed_model import write_timed_model
from wavepp_worker.runtime.client import config_checks
from wavepp_worker.runtime.client.config_checks import activations_of, ownership_of
from wavepp_worker.runtime.client.kv_pools import (
    headroom_blocks,
    pool_blocks,
    rank_0_blocks,
    tier_blocks,
)
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.client.start_checks import check_start

from tests.support.timed_models import timed_model


def config(model: Path = Path("/m"), **values: Any) -> EngineConfig:
    return EngineConfig(model=model, dtype="float32", **values)


def test_pools_are_whole_blocks_of_each_rank() -> None:
    assert pool_blocks(config(pp=2, kv_tokens=99, block_size=10)) == [9, 9]
    tiers = config(pp=2, kv_tokens=(20, 10), block_size=10, host_kv_tokens=(0, 35), disk_kv_tokens=0)
    assert pool_blocks(tiers) == [2, 1]
    assert tier_blocks(tiers) == [(0, 0), (3, 0)]
    for values, sentence in (
        ({"kv_tokens": 15}, "less than one block of 16; raise kv_tokens or lower block_size"),
        ({"kv_tokens": (32, 32)}, "kv_tokens lists 2 pools for pp=1"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            pool_blocks(config(**values))
    for values, sentence in (
        ({"host_kv_tokens": -1}, "host_kv_tokens: should be at least 0, not -1"),
        ({"disk_kv_tokens": 64}, "disk_path is not set"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            tier_blocks(config(**values))


def test_rank_0_keeps_no_more_than_the_smallest_rank_can() -> None:
    none = (0, 0)
    assert rank_0_blocks([40, 10, 20], [none] * 3) == (10, none)
    assert rank_0_blocks([10, 40], [none] * 2) == (10, none)
    assert rank_0_blocks([40, 10], [(50, 60), (20, 0)]) == (30, none)
    assert rank_0_blocks([40, 10], [(50, 60), (20, 80)]) == (40, (50, 20))
    assert rank_0_blocks([40, 80], [(0, 60), (0, 80)]) == (40, (0, 60))


def test_headroom_is_two_waves_a_rank_but_a_small_pool_is_used() -> None:
    wide = config(pp=4, max_num_batched_tokens=100, block_size=16)
    assert headroom_blocks(wide, 10_000) == 50
    assert headroom_blocks(wide, 320) == 10


def test_leases_are_the_default_of_wave_admission_and_lockstep_refuses_them() -> None:
    assert ownership_of(config()) == "lease"
    assert ownership_of(config(admission="lockstep")) == "none"
    assert ownership_of(config(ownership="none")) == "none"
    with pytest.raises(ConfigError, match="ownership=lease needs admission=wave"):
        ownership_of(config(admission="lockstep", ownership="lease"))


def test_activations_go_by_nccl_where_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By memory that ranks share where they share GPUs, and by sockets elsewhere.

    What cannot be had is refused before anything starts.
    """

    def chosen(gpus: int, nccl: bool = True, **values: Any) -> str:
        monkeypatch.setattr(config_checks, "gpu_count", lambda: gpus)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
        return activations_of(config(pp=2, **values))

    assert chosen(2, device="cuda") == "nccl"
    assert chosen(2, device="cuda", activations="socket") == "socket"
    assert chosen(1, device="cuda") == "ipc"
    assert chosen(2, device="cuda", nccl=False) == "ipc"
    assert chosen(2, device="cuda", activations="ipc") == "ipc"
    # Both ranks on one of them.
    assert chosen(2, device="cuda:1") == "ipc"
    assert chosen(0) == "socket"
    assert chosen(0, activations="gloo") == "gloo"
    assert activations_of(config(pp=1, activations="gloo")) == "socket"
    for gpus, values, sentence in (
        (
            1,
            {"device": "cuda", "activations": "nccl"},
            "each of 2 ranks needs a GPU of its own, but .* 1 GPUs .* set activations to ipc or socket",
        ),
        (2, {"activations": "ipc"}, "which shares memory of GPUs, but device is cpu; set it to socket"),
        (2, {"activations": "nccl"}, "but device is cpu"),
        (2, {"device": "cuda", "activations": "nccl", "nccl": False}, "is built without it"),
        (2, {"device": "cuda", "activations": "gloo"}, "which sends from CPUs"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            chosen(gpus, **values)


def test_every_rank_gets_its_own(tiny_llama: Path, tmp_path: Path) -> None:
    info = read_model_info(tiny_llama)
    made = rank_configs(config(tiny_llama, pp=2, kv_tokens=(320, 640)), info, tmp_path)
    assert [each.blocks for each in made] == [20, 40]
    assert [each.first for each in made] == [True, False]
    assert made[0].layers[1] == made[1].layers[0]
    assert made[0].commands == made[1].commands
    assert [each.or_socket for each in made] == [True, True]


def test_sizes_that_do_not_suit_the_planner_are_refused_before_a_rank_starts(
    tiny_llama: Path, tmp_path: Path
) -> None:
    bad = config(tiny_llama, planner="mpu-paper", max_num_batched_tokens=100, block_size=16)
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens: 100 is no multiple of block_size=16"):
        rank_configs(bad, read_model_info(tiny_llama), tmp_path)


def test_order_is_by_prefix_where_requests_lease_and_is_refused_elsewhere(
    tiny_llama: Path, tmp_path: Path
) -> None:
    info = read_model_info(tiny_llama)
    [leased, _] = rank_configs(config(tiny_llama, pp=2, kv_tokens=(640, 320)), info, tmp_path)
    assert (leased.order, leased.order_max_passed_tokens) == ("prefix", 640), "twice the smallest pool"
    [told] = rank_configs(config(tiny_llama, order="prefix", order_max_passed_tokens=7), info, tmp_path)
    assert (told.order, told.order_max_passed_tokens) == ("prefix", 7)
    [baseline] = rank_configs(config(tiny_llama, admission="lockstep"), info, tmp_path)
    assert baseline.order == "fcfs"
    with pytest.raises(ConfigError, match="order=prefix needs ownership=lease"):
        rank_configs(config(tiny_llama, ownership="none", order="prefix"), info, tmp_path)


@pytest.mark.parametrize(
    "values", [{"snapshot_interval": 32}, {"state_blocks": 8}], ids=lambda values: next(iter(values))
)
def test_settings_of_recurrent_layers_need_some(
    values: dict[str, Any], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """In an engine, by all that transformers says; in checks before it, by what the configuration's file says."""
    [key], plain, hybrid = values, tiny_model("llama"), tiny_model("qwen3_next")
    timed = write_timed_model(tmp_path / "timed", timed_model())
    for model in (plain, timed):
        asked = config(model, **values)
        for check in (
            lambda asked=asked: check_start(asked, read_model_shape(asked.model)),
            lambda asked=asked: rank_configs(asked, read_model_info(asked.model), tmp_path),
        ):
            with pytest.raises(
                ConfigError, match=f"^{key}: {model} has no recurrent layers, .*; leave it out"
            ):
                check()
    [rank] = rank_configs(config(hybrid, **values), read_model_info(hybrid), tmp_path)
    assert getattr(rank, key) == values[key]
    check_start(config(hybrid, max_model_len=64, **values), read_model_shape(hybrid))


def test_the_usual_interval_is_taken_of_any_model(tiny_llama: Path, tmp_path: Path) -> None:
    usual = config(tiny_llama, snapshot_interval=1024)
    assert rank_configs(usual, read_model_info(tiny_llama), tmp_path)
    check_start(usual, read_model_shape(tiny_llama))
