from __future__ import annotations

from pathlib import Path

from wavepp_worker.model.model_info import read_model_info

from tests.support import tiny_models
from tests.support.model_files import edit_json


def test_reads_a_tiny_model(tiny_llama: Path) -> None:
    info = read_model_info(tiny_llama)
    assert (info.num_layers, info.vocab_size, info.hidden_size, info.context_length) == (6, 300, 64, 8192)
    assert info.eos_token_ids == (tiny_models.EOS,)
    assert info.dtype == "float32"
    per_layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 112 + 2 * 64
    assert info.layer_costs[:5] == (per_layer,) * 5
    assert info.layer_costs[5] == per_layer - 3 * 64 * 112, "nobody wants more of most tokens than their KV"
    assert 0 <= info.embedding_cost < info.head_cost < 300 * 64


def test_tied_head_costs_as_much_as_its_own(tiny_tied: Path, tiny_llama: Path) -> None:
    assert read_model_info(tiny_tied).head_cost == read_model_info(tiny_llama).head_cost


def test_end_tokens_of_both_files(copy: Path) -> None:
    edit_json(copy / "generation_config.json", eos_token_id=[299, 297])
    edit_json(copy / "config.json", eos_token_id=298)
    assert read_model_info(copy).eos_token_ids == (299, 297, 298)
    (copy / "generation_config.json").unlink()
    assert read_model_info(copy).eos_token_ids == (298,)
