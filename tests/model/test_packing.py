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
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.results import Materialised
from wavepp_worker.model.layer_cache import keeping_everything
from wavepp_worker.model.stage import Chunk, ChunkState, StageOutput
from wavepp_worker.model.torch_stage import TorchStage
from wavepp_worker.model.window_pool import window_pool
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank.build import window_memories

from tests.runtime.tiers.test_tier_store import rank_config
from tests.support import tiny_models
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


@pytest.mark.parametrize("family", FAMILIES)
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
    pipe = Pipeline(stages(directory, ends), block, blocks=sum(-(-n // block) for n in lengths) + 2)
    for request, n in enumerate(lengths):
        pipe.admit(request, n)
    for parts in waves:
        logits = pipe.run([(r, a, prompts[r][a : a + n], True) for r, a, n in parts])
        for row, (r, a, n) in zip(logits, parts, strict=True):
            assert (row - wanted[r][a + n - 1]).abs().max() < TOLERANCE
            assert row.argmax() == wanted[r][a + n - 1].argmax()


def test_every_family_is_covered() -> None:
    assert set(FAMILIES) == set(tiny_models.FAMILIES)


class CachedRank:
    """A stage with the cache that its rank would have, and no tiers below it."""

    def __init__(self, stage: TorchStage, config: RankConfig) -> None:
        pool = (config.blocks, config.block_size)
        limits = (config.max_num_seqs, config.max_num_batched_tokens)
        self.stage = stage
        self.kv = stage.make_kv(*pool, config.state_blocks, lambda span: window_pool(*pool, span, *limits)[0])
        specs = [spec for spec, _ in window_memories(config, stage, self.kv)]
        self.cache = RankCache(specs, config.block_size)
        self.claimed: Materialised | None = None

    def forget(self, draw: random.Random) -> None:
        """Some of what can be reused, of any window."""
        with self.cache.windows() as windows:
            for window in windows:
                for node in list(window.tree.nodes.values()):
                    if node.attached and draw.random() < 0.1:
                        window.tree.detach(node)

    def forward(self, data: Any, start: int, length: int, resumed: int) -> StageOutput:
        begun, claimed = self.cache.begin("r", start + length), self.claimed
        assert claimed is not None
        rows = [table for table in claimed.tables if table]
        state = None
        for window, running in enumerate(claimed.states):
            if running is not None:
                before = claimed.resume[window] if start == resumed else running
                state = ChunkState(before, running, begun.snapshots[window])
        table = torch.tensor(rows if len(rows) > 1 else next(iter(rows), []), dtype=torch.int64)
        output = self.stage.forward(data, [Chunk(start, length, table, True, state)], self.kv)
        self.cache.publish("r", start + length)
        return output


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_caches_forget_what_they_offer_is_right(
    family: str, tiny_model: Callable, stages: Callable, plain: Callable, tmp_path: Path
) -> None:
    """Endpoints, evictions, chunks, divisions and snapshots are drawn; ranks agree on the furthest that all have."""
    draw, block, wave = random.Random(family), 4, 16
    directory, resumed_at = tiny_model(family), set()
    ends = draw.choice([(6,), (1, 6), (2, 4, 6), (1, 2, 3, 4, 5, 6)])
    made = stages(directory, ends)
    caches = [cache for stage in made for cache in stage._caches]
    keeping = keeping_everything(caches, [stage.layers for stage in made])
    ranks = [
        CachedRank(
            stage,
            rank_config(
                tmp_path,
                blocks=40,
                block_size=block,
                state_blocks=9,
                snapshot_interval=16,
                max_num_seqs=1,
                max_num_batched_tokens=wave,
                handoff="socket",
                keeps_keys=bool(keeping) and not number and 0 not in keeping,
            ),
        )
        for number, stage in enumerate(made)
    ]
    maker = BlockKeyMaker(bytes(SECRET_BYTES), "m", block)
    whole = prompt(72, 1)
    for turn in range(6):
        cut = draw.randrange(20, 72)
        tokens = torch.cat([whole[:cut], prompt(draw.randrange(1, 12), turn)])
        keys, count = BlockKeys(maker.keys(token_ids.pack(tokens.tolist()))), len(tokens)
        at, prepared = min(rank.cache.hint(keys, count) for rank in ranks), False
        while not prepared:
            claims = [rank.cache.prepare("r", keys, count, at) for rank in ranks]
            reached = min(claim.endpoint for claim in claims if claim is not None)
            prepared = reached == at and all(claim is not None and claim.committed for claim in claims)
            for rank in ranks if not prepared else ():
                rank.cache.release("r")
            at = reached
        resumed_at.add(at)
        for rank in ranks:
            rank.cache.ask("r", draw.randrange(0, count, block))
            rank.claimed = rank.cache.materialise("r")
        wanted, start = plain(directory, tokens), at
        while start < count:
            length = min(count - start, draw.randint(1, wave))
            data: Any = tokens[start : start + length]
            for rank in ranks:
                output = rank.forward(data, start, length, at)
                data = output.activations
            start += length
            assert output.logits is not None
            assert (output.logits[0] - wanted[start - 1]).abs().max() < 4 * TOLERANCE
        for rank in ranks:
            rank.cache.release("r")
            rank.cache.audit()
            rank.forget(draw)
    assert len(resumed_at) > 1
