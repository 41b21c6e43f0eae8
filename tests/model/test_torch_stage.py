from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.attention import interface
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from tests.support.pipeline import Pipeline
from tests.support.tiny_models import make_model


def prompt(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 297, (length,), generator=torch.Generator().manual_seed(seed))


def test_only_wanted_rows_get_logits(tiny_llama: Path, stages: Callable, plain: Callable) -> None:
    (stage,) = stages(tiny_llama, (6,))
    kv = stage.make_kv(8, 4)
    tokens = [prompt(n, n) for n in (5, 3, 7)]
    tables = [torch.tensor([0, 1]), torch.tensor([7]), torch.tensor([3, 2])]
    chunks = [
        Chunk(0, len(t), table, wants)
        for t, table, wants in zip(tokens, tables, (True, False, True), strict=True)
    ]
    logits = stage.forward(torch.cat(tokens), chunks, kv).logits
    assert logits.shape == (2, 300)
    assert logits.dtype == torch.float32
    for row, t in zip(logits, (tokens[0], tokens[2]), strict=True):
        assert torch.allclose(row, plain(tiny_llama, t)[-1], atol=5e-4)
    none = [Chunk(0, 5, tables[0], False)]
    assert stage.forward(tokens[0], none, kv).logits.shape == (0, 300)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gpt_oss", "gemma2", "mistral"])
def test_decode_in_one_batch_equals_plain_forward(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable
) -> None:
    directory = tiny_model(family)
    lengths = (40, 3, 61)
    prompts = [prompt(n, n) for n in lengths]
    pipe = Pipeline(stages(directory, (2, 6)), 4, blocks=40)
    for request, tokens in enumerate(prompts):
        pipe.admit(request, len(tokens))
        pipe.run([(request, 0, tokens[: len(tokens) - 2], False)])
    for back in (2, 1):
        parts = [(r, len(t) - back, t[len(t) - back :][:1], True) for r, t in enumerate(prompts)]
        for row, tokens in zip(pipe.run(parts), prompts, strict=True):
            assert torch.allclose(row, plain(directory, tokens)[-back], atol=5e-4)


def test_decode_is_one_attention_call_a_layer(
    tiny_llama: Path, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = Pipeline(stages(tiny_llama, (6,), by_torch=True), 4, blocks=12)
    tokens = prompt(9)
    for request in range(3):
        pipe.admit(request, 9)
        pipe.run([(request, 0, tokens[:8], False)])
    calls = []
    attend = interface.F.scaled_dot_product_attention
    monkeypatch.setattr(
        interface.F,
        "scaled_dot_product_attention",
        lambda q, *args, **kwargs: calls.append(len(q)) or attend(q, *args, **kwargs),
    )
    pipe.run([(request, 8, tokens[8:], True) for request in range(3)])
    assert calls == [3] * 6


def test_what_is_not_a_number_elsewhere_in_the_pool_stays_there(
    tiny_llama: Path, stages: Callable, plain: Callable
) -> None:
    pipe = Pipeline(stages(tiny_llama, (6,)), 4, blocks=12)
    good, bad = prompt(6), prompt(20)
    pipe.admit(0, 6)
    pipe.admit(1, 20)
    pipe.run([(0, 0, good[:5], False), (1, 0, bad[:19], False)])
    others = [block for block in range(12) if block not in pipe.tables[0][0]]
    for layer in range(6):
        for pool in pipe.kvs[0].pools(layer):
            pool.view(12, 4, *pool.shape[1:])[others] = torch.nan
    row = pipe.run([(0, 5, good[5:], True), (1, 19, bad[19:], False)])[0]
    assert torch.allclose(row, plain(tiny_llama, good)[-1], atol=5e-4)


def stays_near_float32(directory: Path, stages: Callable, plain: Callable) -> None:
    """No further from the float32 truth than a plain bfloat16 forward is, up to a factor of two."""
    tokens = prompt(60)
    pipe = Pipeline(stages(directory, (2, 4, 6), torch.bfloat16), 16, blocks=8)
    pipe.admit(0, 60)
    rows = []
    for start, end in ((0, 7), (7, 40), (40, 59), (59, 60)):
        rows.append(pipe.run([(0, start, tokens[start:end], True)])[0])
    assert pipe.kvs[0].pools(0)[0].dtype == torch.bfloat16
    at = torch.tensor([6, 39, 58, 59])
    truth = plain(directory, tokens)[at]
    reference = (plain(directory, tokens, torch.bfloat16)[at] - truth).abs().mean()
    assert (torch.stack(rows).cpu() - truth.cpu()).abs().mean() < 2 * reference


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_moe", "deepseek_v3"])
def test_bfloat16_stays_near_float32(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable
) -> None:
    stays_near_float32(tiny_model(family), stages, plain)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama", {"head_dim": 64}),
        ("mistral", {"head_dim": 64}),
        ("qwen3", {"head_dim": 128}),
        ("deepseek_v3", {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 4}),
    ],
)
def test_so_do_sizes_that_libraries_have_kernels_for(
    family: str, sizes: dict[str, int], tmp_path: Path, stages: Callable, plain: Callable
) -> None:
    """On a GPU, FlashInfer's are reached by these alone."""
    stays_near_float32(make_model(tmp_path / "model", family, **sizes), stages, plain)


def test_handing_kv_on_continues_the_generation(tiny_llama: Path, stages: Callable, plain: Callable) -> None:
    """Prefilled in three stages with one block size, decoded in one stage with another."""
    tokens = prompt(50)
    there = Pipeline(stages(tiny_llama, (1, 4, 6)), 16, blocks=6)
    here = Pipeline(stages(tiny_llama, (6,)), 3, blocks=20, seed=5)
    there.admit(0, 49)
    here.admit(0, 50)
    there.run([(0, 0, tokens[:49], False)])
    for kv, tables in zip(there.kvs, there.tables, strict=True):
        for start, end in ((0, 10), (10, 49)):
            payload = kv.export_tokens(tables[0], start, end)
            here.kvs[0].import_tokens(here.tables[0][0], start, end, kv.layers, payload)
    row = here.run([(0, 49, tokens[49:], True)])[0]
    assert torch.allclose(row, plain(tiny_llama, tokens)[-1], atol=5e-4)


def test_latent_attention_stores_latents(tiny_mla: Path, stages: Callable) -> None:
    kv = stages(tiny_mla, (6,))[0].make_kv(2, 4)
    assert kv.bytes_per_token == 6 * (16 + 8) * 4


def test_misuse_is_a_sentence(tiny_llama: Path, stages: Callable) -> None:
    first, last = stages(tiny_llama, (3, 6))
    kv, tokens, table = first.make_kv(4, 4), prompt(5), torch.tensor([0, 1])
    with pytest.raises(WaveppError, match="add up to 4 tokens but 5 came in"):
        first.forward(tokens, [Chunk(0, 4, table, False)], kv)
    with pytest.raises(WaveppError, match="takes activations, not token ids"):
        last.forward(tokens, [Chunk(0, 5, table, False)], last.make_kv(4, 4))
    with pytest.raises(WaveppError, match="takes token ids, not activations"):
        first.forward({"hidden": torch.zeros(5, 64)}, [Chunk(0, 5, table, False)], kv)
    with pytest.raises(WaveppError, match="was given the KV memory of"):
        last.forward({"hidden": torch.zeros(5, 64)}, [Chunk(0, 5, table, False)], kv)
    for numbers in (torch.zeros(5, 63), torch.zeros(5, 96), torch.zeros(5, 64, dtype=torch.float16)):
        with pytest.raises(WaveppError, match=r"takes activations of 64 numbers in torch\.float32, not"):
            last.forward({"hidden": numbers}, [Chunk(0, 5, table, False)], last.make_kv(4, 4))
    with pytest.raises(WaveppError, match="the block table has 2"):
        first.forward(tokens, [Chunk(4, 5, table, False)], kv)
    with pytest.raises(WaveppError, match="at least one token"):
        first.forward(tokens[:0], [], kv)
    with pytest.raises(ConfigError, match=r"^partition: "):
        load_stage(tiny_llama, range(4, 7), torch.float32, "cpu")
    with pytest.raises(ConfigError, match=r"^device: "):
        load_stage(tiny_llama, range(0, 6), torch.float32, "cuda:99")
