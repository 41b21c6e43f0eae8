"""Each configured planner by the first wave it makes: two stages, blocks of 16 tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from wavepp_worker import EngineConfig
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.runtime.client.rank_configs import rank_configs
from wavepp_worker.runtime.planning.planner import PipelineView, Planner
from wavepp_worker.runtime.planning.registry import make_planner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu

from tests.support.planning import lanes

Make = Callable[..., Planner]


@pytest.fixture
def planner(tiny_llama: Path, tmp_path: Path) -> Make:
    def make(name: str, **settings: object) -> Planner:
        values = {
            "model": tiny_llama,
            "pp": 2,
            "block_size": 16,
            "max_num_batched_tokens": 128,
            "planner": name,
        }
        config = EngineConfig(**(values | settings))  # type: ignore[arg-type]
        return make_planner(rank_configs(config, read_model_info(tiny_llama), tmp_path)[0], stages=2)

    return make


def wave(planner: Planner, *left: int) -> int:
    """Tokens of the first wave."""
    return sum(span.length for span in planner.propose(PipelineView(lanes(*left))))


def test_greedy_needs_no_whole_blocks(planner: Make) -> None:
    assert wave(planner("greedy", max_num_batched_tokens=100), 1000) == 100


def test_throttle_spreads_over_the_waves_of_the_ring(planner: Make) -> None:
    assert wave(planner("throttle"), 416) == 96, "a fourth is 104"
    assert wave(planner("throttle"), 100) == 64, "half a wave at least"
    assert wave(planner("throttle", min_num_batched_tokens=32), 100) == 32


def test_two_budget_names_the_one_setting_that_it_has() -> None:
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens: 100 is no multiple of block_size=16"):
        TwoBudgetMpu(stages=2, max_num_batched_tokens=100, block_size=16)


def test_two_budget_takes_full_waves_if_there_is_one_for_each_stage(planner: Make) -> None:
    assert wave(planner("two-budget"), 256) == 128
    assert wave(planner("two-budget"), 255) == 64


def test_mpu_paper_shrinks_to_half_a_wave_unless_told_otherwise(planner: Make) -> None:
    assert wave(planner("mpu-paper"), 100) == 64
    assert wave(planner("mpu-paper", min_num_batched_tokens=16), 100) == 16
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens: 100 is no multiple of block_size=16"):
        planner("mpu-paper", max_num_batched_tokens=100)


def test_mpu_makes_waves_of_whole_blocks_by_the_configured_cost(planner: Make) -> None:
    assert wave(planner("mpu", wave_cost=(2.0, 1.0, 0.0), max_num_batched_tokens=100), *[640] * 10) == 96
    assert wave(planner("mpu", wave_cost=(1.0, 1.0, 0.0)), 100) == 16, (
        "one block is the least of waves of 128"
    )
    assert wave(planner("mpu", wave_cost=(1.0, 1.0, 0.0), min_num_batched_tokens=32), 100) == 32


def test_mpu_learns_the_cost_that_is_not_configured(planner: Make) -> None:
    learning, told = planner("mpu"), planner("mpu", wave_cost=(1.0, 1.0, 0.0))
    before = wave(learning, 120), wave(told, 120)
    for mpu in (learning, told):
        for tokens in (16, 32, 64, 128) * 10:
            (lane,) = lanes(tokens)
            mpu.observe((lane.span(tokens),), 0.01 * tokens)
    assert wave(learning, 120) < before[0], "waves cost little by themselves, so they can be small"
    assert wave(told, 120) == before[1]


@pytest.mark.parametrize("name", get_args(EngineConfig.model_fields["planner"].annotation))
def test_what_a_planner_does_not_use_it_is_not_given(name: str, planner: Make) -> None:
    """Who gives it all the same is told who uses it."""
    for key, value, users in (
        ("min_num_batched_tokens", 32, "throttle or mpu-paper or mpu"),
        ("wave_cost", (2.0, 1.0, 0.0), "mpu"),
    ):
        if name in users.split(" or "):
            assert planner(name, **{key: value})
            continue
        with pytest.raises(ConfigError) as caught:
            planner(name, **{key: value})
        assert str(caught.value) == (
            f"{key}: planner={name} does not use it; leave it out, or set planner to {users}"
        )
