"""A stage with the cache that its rank would have: books, tiers and bytes, without processes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.rank_cache import RankCache
from wavepp_worker.cache.results import Materialised
from wavepp_worker.model.kv.layer_cache import keeping_everything
from wavepp_worker.model.kv.window_pool import window_pool
from wavepp_worker.model.stage import Chunk, ChunkState, StageOutput
from wavepp_worker.model.torch_stage import TorchStage
from wavepp_worker.runtime.protocol.rank_config import RankConfig
from wavepp_worker.runtime.rank.build import window_memories
from wavepp_worker.runtime.tiers.tier_store import open_tiers

from tests.runtime.tiers.test_tier_store import rank_config


class Part(NamedTuple):
    """One request's tokens ``start … start + length - 1`` in a wave."""

    name: str
    start: int
    length: int


class CachedRank:
    """What computes the waves of one rank, one after the other, and keeps what can be reused of them."""

    def __init__(self, stage: TorchStage, config: RankConfig) -> None:
        pool = (config.blocks, config.block_size)
        limits = (config.max_num_seqs, config.max_num_batched_tokens)
        self.stage = stage
        self.kv = stage.make_kv(*pool, config.state_blocks, lambda span: window_pool(*pool, span, *limits)[0])
        windows = window_memories(config, stage, self.kv)
        self.cache = RankCache([spec for spec, _ in windows], config.block_size)
        self.tiers = open_tiers(config, windows)
        self.brought_up = 0
        """Blocks and states that came back from a tier below the device."""
        self._claimed: dict[str, tuple[int, Materialised]] = {}

    def materialise(self, name: str, endpoint: int) -> None:
        claimed = self.cache.materialise(name)
        self.brought_up += sum(move.target[0] == 0 for move in claimed.moves)
        self.tiers.run(claimed.moves)
        self._claimed[name] = endpoint, claimed

    def forward(self, data: Any, parts: Sequence[Part]) -> StageOutput:
        """Run one wave, whose chunks all want logits, and publish what it computed."""
        chunks = []
        for part in parts:
            begun = self.cache.begin(part.name, part.start + part.length)
            self.tiers.run(begun.moves)
            endpoint, claimed = self._claimed[part.name]
            state = None
            for window, running in enumerate(claimed.states):
                if running is not None:
                    before = claimed.resume[window] if part.start == endpoint else running
                    state = ChunkState(before, running, begun.snapshots[window])
            rows = [table for table in claimed.tables if table]
            table = torch.tensor(rows if len(rows) > 1 else next(iter(rows), []), dtype=torch.int64)
            chunks.append(Chunk(part.start, part.length, table, True, state))
        output = self.stage.forward(data, chunks, self.kv)
        for part in parts:
            self.cache.publish(part.name, part.start + part.length)
        return output

    def release(self, name: str) -> None:
        self._claimed.pop(name, None)
        self.cache.release(name)

    def forget(self, draw: random.Random, share: float) -> None:
        """Some of what can be reused and nobody holds, of any window."""
        with self.cache.windows() as windows:
            for window in windows:
                for node in list(window.tree.nodes.values()):
                    if node.attached and not node.pins and draw.random() < share:
                        window.tree.detach(node)


def cached_ranks(stages: Sequence[TorchStage], directory: Path, **limits: object) -> list[CachedRank]:
    """The ranks of a pipeline, with such values in their configurations; the first keeps keys where it has to."""
    keeping = keeping_everything(
        [cache for stage in stages for cache in stage._caches], [stage.layers for stage in stages]
    )
    return [
        CachedRank(
            stage,
            rank_config(
                directory,
                handoff="socket",
                keeps_keys=bool(keeping) and not number and 0 not in keeping,
                **limits,
            ),
        )
        for number, stage in enumerate(stages)
    ]


def agree(ranks: Sequence[CachedRank], name: str, keys: BlockKeys, tokens: int) -> int | None:
    """Have all ranks prepare a request at the furthest endpoint that they share, which is returned.

    None, and nothing is held, if one of them has no room.
    """
    at = min(rank.cache.hint(keys, tokens) for rank in ranks)
    while True:
        claims = [rank.cache.prepare(name, keys, tokens, at) for rank in ranks]
        reached = [at if claim is None else claim.endpoint for claim in claims]
        if all(claim is not None and claim.committed for claim in claims) and min(reached) == at:
            return at
        for rank in ranks:
            rank.release(name)
        if min(reached) == at:
            return None
        at = min(reached)
