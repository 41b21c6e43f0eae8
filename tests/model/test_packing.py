"""Any chunking and packing over any division of the layers gives the logits of one plain forward."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wavepp_worker import token_ids
from wavepp_worker.block_keys import SECRET_BYTES, BlockKeyMaker, BlockKeys

from tests.support import tiny_models
from tests.support.cached_rank import Part, agree, cached_ranks
from tests.support.pipeline import Pipeline

FAMILIES = (
    "llama",
    "qwen3",
    "tied",
    "mistral",
    "qwen3_moe",
    "minimax_m2",
    "mixtral",
    "deepseek_v3",
    "glm_moe_dsa",
    "qwen3_next",
    "kimi_linear",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "granite",
)
READ_BY_TORCH = ("llama", "mistral", "deepseek_v3")
"""Those that run without our kernels as well: full, sliding and latent attention."""
TOLERANCE = 5e-4


def prompt(length: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 297, (length,), generator=torch.Generator().manual_seed(seed))


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[int, int, int]]]]:
    """Prompt lengths, and waves of ``(request, start, length)`` that run every prompt in order."""
    lengths = draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    at = [0] * len(lengths)
    waves = []
    while any(a < n for a, n in zip(at, lengths, strict=True)):
        open_ = [r for r, n in enumerate(lengths) if at[r] < n]
        chosen = draw(st.lists(st.sampled_from(open_), min_size=1, max_size=3, unique=True))
        sizes = {r: draw(st.one_of(st.just(1), st.integers(1, lengths[r] - at[r]))) for r in chosen}
        if draw(st.booleans()):
            sizes = {r: lengths[r] - at[r] for r in chosen}
        waves.append([(r, at[r], sizes[r]) for r in chosen])
        for r in chosen:
            at[r] += sizes[r]
    return lengths, waves


@pytest.mark.parametrize(
    ("family", "by_torch"),
    [*((family, False) for family in FAMILIES), *((family, True) for family in READ_BY_TORCH)],
)
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    schedule=schedules(),
    ends=st.sampled_from([(6,), (3, 6), (1, 3, 6), (2, 3, 4, 6), (1, 2, 3, 4, 5, 6)]),
    block=st.sampled_from([1, 3, 16]),
)
def test_logits_equal_plain_forward(
    family: str,
    by_torch: bool,
    schedule: tuple[list[int], list[list[tuple[int, int, int]]]],
    ends: tuple[int, ...],
    block: int,
    tiny_model: Callable,
    stages: Callable,
    plain: Callable,
) -> None:
    directory = tiny_model(family)
    lengths, waves = schedule
    prompts = [prompt(n, seed) for seed, n in enumerate(lengths)]
    wanted = [plain(directory, tokens) for tokens in prompts]
    pipe = Pipeline(
        stages(directory, ends, by_torch=by_torch), block, blocks=sum(-(-n // block) for n in lengths) + 2
    )
    for request, n in enumerate(lengths):
        pipe.admit(request, n)
    for parts in waves:
        logits = pipe.run([(r, a, prompts[r][a : a + n], True) for r, a, n in parts])
        for row, (r, a, n) in zip(logits, parts, strict=True):
            assert (row - wanted[r][a + n - 1]).abs().max() < TOLERANCE
            assert row.argmax() == wanted[r][a + n - 1].argmax()


def test_every_family_is_covered() -> None:
    assert set(FAMILIES) == set(tiny_models.FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_caches_forget_what_they_offer_is_right(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable, tmp_path: Path
) -> None:
    """Endpoints, evictions, chunks, divisions and snapshots are drawn; ranks agree on the furthest that all have."""
    draw, block, wave = random.Random(family), 4, 16
    directory, resumed_at = tiny_model(family), set()
    ends = draw.choice([(6,), (1, 6), (2, 4, 6), (1, 2, 3, 4, 5, 6)])
    ranks = cached_ranks(
        stages(directory, ends),
        tmp_path,
        blocks=40,
        block_size=block,
        state_blocks=9,
        snapshot_interval=16,
        max_num_seqs=1,
        max_num_batched_tokens=wave,
    )
    maker = BlockKeyMaker(bytes(SECRET_BYTES), "m", block)
    whole = prompt(72, 1)
    for turn in range(6):
        cut = draw.randrange(20, 72)
        tokens = torch.cat([whole[:cut], prompt(draw.randrange(1, 12), turn)])
        keys, count = BlockKeys(maker.keys(token_ids.pack(tokens.tolist()))), len(tokens)
        at = agree(ranks, "r", keys, count)
        assert at is not None
        resumed_at.add(at)
        for rank in ranks:
            rank.cache.ask("r", draw.randrange(0, count, block))
            rank.materialise("r", at)
        wanted, start = plain(directory, tokens), at
        while start < count:
            length = min(count - start, draw.randint(1, wave))
            data: Any = tokens[start : start + length]
            for rank in ranks:
                output = rank.forward(data, [Part("r", start, length)])
                data = output.activations
            start += length
            assert output.logits is not None
            assert (output.logits[0] - wanted[start - 1]).abs().max() < 4 * TOLERANCE
        for rank in ranks:
            rank.release("r")
            rank.cache.audit()
            rank.forget(draw, 0.1)
    assert len(resumed_at) > 1
