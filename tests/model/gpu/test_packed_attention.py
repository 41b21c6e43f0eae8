"""One call of attention for all chunks of a wave, with the definition in place of torch's kernel for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.model.attention import interface
from wavepp_worker.model.gpu import packed_attention
from wavepp_worker.model.gpu.packed_attention import AttentionKinds, can_pack, has_flash, kernel_on_gpu
from wavepp_worker.model.stage import Chunk

from tests.support.nowhere import Nowhere

TOKENS = torch.arange(20, 29)
TABLES = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])


class Flash:
    """``varlen_attn`` as its documentation and FlashAttention's have it, over any device's tensors.

    Attributes:
        calls: windows that it was called with.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int]] = []
        patch.setattr(packed_attention, "varlen_attn", self)
        patch.setattr(packed_attention, "has_flash", lambda device, dtype: True)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> torch.Tensor:
        self.calls.append(window_size)
        (tokens, heads, dim), (read, groups, _) = query.shape, key.shape
        assert key.shape == value.shape == (read, groups, dim)
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        assert enable_gqa == (heads != groups)
        assert heads % groups == 0
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        queries, keys = cu_seq_q.tolist(), cu_seq_k.tolist()
        assert (queries[0], queries[-1], keys[0], keys[-1]) == (0, tokens, 0, read)
        assert max_q == max(b - a for a, b in pairwise(queries))
        assert max_k == max(b - a for a, b in pairwise(keys))
        left, right = window_size
        assert right == 0
        out = torch.empty_like(query)
        for n in range(len(queries) - 1):
            q = query[queries[n] : queries[n + 1]].transpose(0, 1)
            k, v = (
                each[keys[n] : keys[n + 1]].transpose(0, 1).repeat_interleave(heads // groups, 0)
                for each in (key, value)
            )
            i = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
            j = torch.arange(k.shape[1])[None]
            seen = (j <= i) & ((j >= i - left) if left >= 0 else torch.tensor(True))
            scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
            out[queries[n] : queries[n + 1]] = (scores.softmax(-1) @ v).transpose(0, 1)
        return out


def waves() -> list[tuple[torch.Tensor, list[Chunk]]]:
    """Three prompts in chunks, with prefixes of several lengths beside none; two are longer than a window."""
    drawn = torch.randint(0, 300, (3, 32), generator=torch.Generator().manual_seed(1))
    cuts = [[(0, 0, 5), (1, 0, 3)], [(0, 5, 9), (1, 3, 4), (2, 0, 31)], [(0, 9, 32), (1, 4, 12)]]
    return [
        (
            torch.cat([drawn[n, start:end] for n, start, end in wave]),
            [Chunk(start, end - start, TABLES[n], True) for n, start, end in wave],
        )
        for wave in cuts
    ]


@pytest.mark.parametrize(
    ("family", "packed"), [("llama", 6), ("mistral", 6), ("deepseek_v3", 6), ("gpt_oss", 0), ("gemma2", 0)]
)
def test_a_wave_gives_the_same_logits_by_one_call_a_layer(
    family: str, packed: int, tiny_model: Callable, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, sliding and latent attention; caps and sinks, which the kernel does not have, go another way."""
    (stage,) = stages(tiny_model(family), (6,), by_torch=True)

    def run() -> list[torch.Tensor]:
        kv = stage.make_kv(12, 8)
        return [stage.forward(tokens, chunks, kv).logits for tokens, chunks in waves()]

    wanted = run()
    flash = Flash(monkeypatch)
    for got, want in zip(run(), wanted, strict=True):
        assert (got - want).abs().max() < 1e-4
    assert len(flash.calls) == packed * len(waves())


def test_it_needs_no_number_of_the_device(
    tiny_model: Callable, stages: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's own ``varlen_attn``, whose shapes hold on a device without numbers as well."""
    nowhere = Nowhere(stages(tiny_model("mistral"), (6,), by_torch=True)[0], monkeypatch)
    monkeypatch.setattr(packed_attention, "has_flash", lambda device, dtype: True)
    asked: list[Any] = []
    attend = interface.attend_packed
    monkeypatch.setattr(interface, "attend_packed", lambda *given: asked.append(given) or attend(*given))
    kv = nowhere.stage.make_kv(12, 8)
    for tokens, chunks in waves():
        nowhere.brought.clear()
        nowhere.forward(tokens, chunks, kv)
        assert len(nowhere.brought) == 2, "token ids, and all else"
    assert len(asked) == 6 * len(waves())


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("llama", AttentionKinds(gathered=6)),
        ("deepseek_v3", AttentionKinds(gathered=6)),
        ("gemma2", AttentionKinds(capped=6)),
        ("gpt_oss", AttentionKinds(capped=6)),
        ("qwen3_next", AttentionKinds(gathered=2)),
        ("glm_moe_dsa", AttentionKinds(picked=6)),
    ],
)
def test_a_stage_knows_in_which_way_its_layers_attend_on_a_gpu(
    family: str, kinds: AttentionKinds, tiny_model: Callable[[str], Path], stages: Callable
) -> None:
    (stage,) = stages(tiny_model(family), (6,), torch.bfloat16)
    assert stage.attention_kinds == kinds


def test_the_log_names_what_computes_attention_and_in_how_many_layers() -> None:
    device = torch.device("cpu")
    some = kernel_on_gpu(device, torch.bfloat16, AttentionKinds(in_place=20, capped=4))
    assert some.startswith("in 20 layers FlashInfer over pages in place")
    assert "; in 4 layers plain torch over gathered pages, tile by tile" in some
    assert "scaled_dot_product_attention" not in some
    alone = kernel_on_gpu(device, torch.bfloat16, AttentionKinds(gathered=3))
    assert alone.startswith("torch's scaled_dot_product_attention"), "a CPU has no FlashAttention"
    assert "nothing" in kernel_on_gpu(device, torch.bfloat16, AttentionKinds())


def test_what_the_kernel_cannot_do_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, query = torch.device("cuda:0"), torch.empty(1, 4, 3, 64)
    assert not has_flash(torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    ask = has_flash.__wrapped__
    assert ask(gpu, torch.bfloat16)
    assert not ask(gpu, torch.float32)
    capability = (7, 5)
    assert not ask(gpu, torch.bfloat16)
    monkeypatch.setattr(packed_attention, "has_flash", lambda device, dtype: dtype is torch.float32)
    assert "varlen_attn" in kernel_on_gpu(gpu, torch.float32, AttentionKinds(gathered=4))
    assert "scaled_dot_product_attention" in kernel_on_gpu(gpu, torch.float64, AttentionKinds(gathered=4))
    assert can_pack(query, query)
    assert not can_pack(query.double(), query.double())
    assert can_pack(query, query[..., :32])
    assert not can_pack(query[..., :32], query)
    assert not can_pack(query[..., :60], query[..., :60])
    assert not can_pack(torch.empty(1, 4, 3, 320), query)
