"""Only picked tokens are read, however rows are tiled and blocks lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.attention import indexed_attention
from wavepp_worker.model.attention.indexed_attention import NOT_PICKED, PagedIndexer, attend_to_picked
from wavepp_worker.model.kv.wave_layout import lay_out_wave, running
from wavepp_worker.model.stage import Chunk

HEADS, PLAIN, ROTARY, RANK, VALUE, BLOCK = 3, 5, 4, 6, 7, 4
TABLES = torch.tensor([5, 2, 7, 0]), torch.tensor([1, 6, 3, 4])
CHUNKS = [Chunk(9, 4, TABLES[0], True), Chunk(0, 3, TABLES[1], True)]


def rows(chunk: Chunk, tokens: int) -> torch.Tensor:
    at = torch.arange(tokens)
    return chunk.block_table[at // BLOCK] * BLOCK + at % BLOCK


@pytest.mark.parametrize("tile", [1, 600, 1 << 20])
def test_attention_reads_the_picked_tokens_and_nothing_else(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_attention, "_TILE_BYTES", tile)
    torch.manual_seed(3)
    projection = nn.Linear(RANK, HEADS * (PLAIN + VALUE), bias=False)
    module = SimpleNamespace(
        kv_b_proj=projection, kv_lora_rank=RANK, qk_nope_head_dim=PLAIN, v_head_dim=VALUE
    )
    latents, rotary = torch.full((32, 1, RANK), torch.nan), torch.full((32, 1, ROTARY), torch.nan)
    query = torch.randn(1, HEADS, 7, PLAIN + ROTARY)
    picked = torch.full((1, 7, 4), NOT_PICKED, dtype=torch.int32)
    wanted = []
    at = 0
    for chunk in CHUNKS:
        for position in range(chunk.start, chunk.start + chunk.length):
            own = torch.randperm(position + 1)[:4]
            picked[0, at, : len(own)] = own
            read = rows(chunk, position + 1)[own]
            latents[read] = torch.where(latents[read].isnan(), torch.randn(len(own), 1, RANK), latents[read])
            rotary[read] = torch.where(rotary[read].isnan(), torch.randn(len(own), 1, ROTARY), rotary[read])
            wanted.append((at, read))
            at += 1
    with torch.no_grad(), running(lay_out_wave(CHUNKS, BLOCK, torch.device("cpu"))):
        got = attend_to_picked(module, query, picked, (latents, rotary), 0.4)
        for token, read in wanted:
            heads = projection(latents[read, 0]).view(len(read), HEADS, PLAIN + VALUE)
            keys = torch.cat([heads[..., :PLAIN], rotary[read].expand(-1, HEADS, -1)], -1)
            weights = torch.softmax(0.4 * torch.einsum("hd,khd->hk", query[0, :, token], keys), -1)
            torch.testing.assert_close(got[0, token], torch.einsum("hk,khv->hv", weights, heads[..., PLAIN:]))


def test_a_stage_that_begins_with_shared_picks_wants_them(
    tiny_model: Callable[[str], Path], stages: Callable
) -> None:
    first, last = stages(tiny_model("glm_moe_dsa"), (2, 6))
    chunk = [Chunk(0, 5, torch.tensor([0, 1]), True)]
    passed_on = first.forward(torch.arange(5), chunk, first.make_kv(2, BLOCK)).activations
    assert passed_on["picked"].shape == (5, 12)
    assert passed_on["picked"].dtype == torch.int32
    # The last token has five to pick from, and room for twelve.
    assert sorted(passed_on["picked"][-1].tolist()) == [NOT_PICKED] * 7 + [0, 1, 2, 3, 4]
    kv = last.make_kv(2, BLOCK)
    assert last.forward(passed_on, chunk, kv).logits.isfinite().all()
    with pytest.raises(WaveppError, match="did not say which tokens"):
        last.forward({"hidden": passed_on["hidden"]}, chunk, kv)


def test_stages_that_begin_with_an_indexer_are_sent_no_picks(
    tiny_model: Callable[[str], Path], stages: Callable
) -> None:
    first, _ = stages(tiny_model("glm_moe_dsa"), (3, 6))
    chunk = [Chunk(0, 5, torch.tensor([0, 1]), True)]
    assert set(first.forward(torch.arange(5), chunk, first.make_kv(2, BLOCK)).activations) == {"hidden"}


def test_indexers_see_one_request_at_a_time_in_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an indexer looks at is bounded: rows times the tokens of one request."""
    seen = []

    class Indexer(nn.Module):
        index_topk, layer_idx, n_heads = 4, 0, 2

        def forward(self, hidden, q_resid, position_embeddings, mask, position_ids, past_key_values):  # type: ignore[no-untyped-def]
            keys = past_key_values.update_indexer(hidden, 0)
            seen.append(tuple(mask.shape))
            assert keys.shape[1] == mask.shape[2]
            return keys[..., 0].masked_fill(~mask[0], -1.0)[None].topk(min(4, keys.shape[1])).indices

    monkeypatch.setattr(indexed_attention, "_TILE_BYTES", 2 * 13 * 8)
    pool = torch.zeros(32, 1, 1)
    pool[rows(CHUNKS[0], 9), 0, 0] = torch.tensor([9.0, 0.1, 8.0, 0.1, 7.0, 0.1, 0.1, 0.1, 0.1])
    hidden = torch.tensor([0.2, 10.0, 0.2, 0.2, 3.0, 2.0, 1.0])[None, :, None]
    kept = SimpleNamespace(index_keys=lambda layer: pool)
    with running(lay_out_wave(CHUNKS, BLOCK, torch.device("cpu"))):
        picked = PagedIndexer(Indexer())(hidden, hidden, (hidden, hidden), None, None, past_key_values=kept)
    assert [sorted(row) for row in picked[0, :4].tolist()] == [[0, 2, 4, 9], *[[0, 2, 4, 10]] * 3]
    assert [sorted(row) for row in picked[0, 4:].tolist()] == [[-1, -1, -1, 0], [-1, -1, 0, 1], [-1, 0, 1, 2]]
    assert seen == [(1, 2, 11), (1, 2, 13), (1, 3, 3)]
