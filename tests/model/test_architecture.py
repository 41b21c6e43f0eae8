from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.model_info import read_model_info

from tests.support.model_files import edit_json


def test_experts_cost_what_a_token_meets(tiny_moe: Path, tiny_mla: Path) -> None:
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 2 * 16 + 2 * 64
    router = 4 * 64
    assert read_model_info(tiny_moe).layer_costs[0] == attention + router + 2 * (3 * 64 * 48)
    mla = read_model_info(tiny_mla).layer_costs
    assert mla[0] == mla[1] != mla[2] == mla[4]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "nothing_known"}, "does not know the architecture nothing_known"),
        ({"auto_map": {}, "model_type": "nothing_known"}, "cannot read the configuration"),
        ({"model_type": []}, r"says model_type: \[\], where a name belongs"),
        ({"model_type": "t5"}, "t5 is not supported, as it is an encoder-decoder"),
        ({"model_type": "bert"}, "bert is not supported"),
        ({"model_type": "gpt2"}, "gpt2 is not supported"),
        ({"model_type": "mamba"}, "mamba is not supported, as its recurrent layers are of a kind that"),
        ({"model_type": "jamba"}, "jamba is not supported, as its recurrent layers are of a kind that"),
        ({"model_type": "minimax"}, "minimax is not supported, as its recurrent layers are of a kind that"),
        ({"layer_types": ["indexed_attention"] * 6}, "layers of kind indexed_attention are not supported"),
        ({"model_type": "vit"}, "vit is not supported, as it is not a causal"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantised as gptq, which"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "rotary embedding .dynamic. depends",
        ),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_architectures_that_cannot_run_are_refused(copy: Path, changes: dict[str, Any], says: str) -> None:
    edit_json(copy / "config.json", **changes)
    with pytest.raises(ConfigError, match=f"^model: .*{says}"):
        read_model_info(copy)
