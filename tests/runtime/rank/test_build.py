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
            spec
            for spec, _ in window_memories(
                rank_config(tmp_path, handoff=handoff, blocks=4, keeps_keys=False), stage, kv
            )
        ]
        for handoff in ("socket", "nixl")
    }
    assert [spec.kind for spec in specs["nixl"]] == ["full"]
    assert {spec.kind for spec in specs["socket"]} == {
        "sliding" if each % 2 == 0 else "full" for each in layers
    }


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
    # There it keeps every token after all.
    assert windows(keeps_keys=True, handoff="nixl") == [("full", False, 4 * kv.bytes_per_token)]
