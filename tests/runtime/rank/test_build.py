from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.model.stage_loader import load_stage
from wavepp_worker.runtime.rank.build import window_memories

from tests.runtime.tiers.test_tier_store import rank_config


@pytest.mark.parametrize("layers", [range(0, 1), range(1, 2), range(0, 2)])
def test_a_rank_whose_blocks_are_read_by_address_lets_go_of_none(
    layers: range, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also one that has nothing but windows: who reads has no address of what was let go of."""
    stage = load_stage(tiny_model("gpt_oss"), layers, torch.float32, "cpu")
    kv = stage.make_kv(4, 4)
    specs = {
        handoff: [
            spec for spec, _ in window_memories(rank_config(tmp_path, handoff=handoff, blocks=4), stage, kv)
        ]
        for handoff in ("socket", "nixl")
    }
    assert [spec.kind for spec in specs["nixl"]] == ["full"]
    assert {spec.kind for spec in specs["socket"]} == {
        "sliding" if each % 2 == 0 else "full" for each in layers
    }
