"""Latent attention that reads only some tokens: an indexer scores all of them, and the best are read.

The cached latents and rotary keys of the picked tokens are all that is read of a prefix. Queries are taken into the
latents' space (*absorbed*), so that no keys and values of heads are made of tokens that are read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from wavepp_worker.model.attention.latent_absorption import absorbed_queries, expansion, values_of
from wavepp_worker.model.kv.wave_layout import WaveLayout, current_wave

NOT_PICKED = -1
"""In a row of picked positions, where a token has fewer before it than may be picked."""
_TILE_BYTES = 64 << 20
"""Of scores, or of gathered latents, at a time."""


class PagedIndexer(nn.Module):
    """Runs a layer's indexer request by request over index keys in the pool.

    Args:
        indexer: transformers' own, which stores keys and asks for all by ``update_indexer``.
    """

    def __init__(self, indexer: nn.Module) -> None:
        super().__init__()
        self.indexer = indexer

    def forward(
        self,
        hidden_states: torch.Tensor,
        q_resid: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        *args: Any,
        past_key_values: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Positions in their requests of what each token reads: int32 ``[1, tokens, index_topk]``."""
        indexer, wave = self.indexer, current_wave()
        most, layer = int(indexer.index_topk), int(indexer.layer_idx)  # type: ignore[arg-type]
        tokens = hidden_states.shape[1]
        picked = torch.full((1, tokens, most), NOT_PICKED, dtype=torch.int32, device=hidden_states.device)
        pool = past_key_values.index_keys(layer)
        for rows, request, start, end in _tiles(wave, int(indexer.n_heads) * 4):  # type: ignore[arg-type]
            keys = past_key_values if pool is None else _RequestKeys(pool, wave, request, start)
            at = torch.arange(end, device=hidden_states.device)
            seen = at <= torch.arange(start, end, device=at.device)[:, None]
            chosen = indexer(
                hidden_states[:, rows],
                q_resid[:, rows],
                tuple(part[:, rows] for part in position_embeddings),
                seen[None],
                None,
                past_key_values=keys,
            )
            chosen = chosen.masked_fill(chosen[0] > at[start:end, None], NOT_PICKED)
            picked[:, rows, : chosen.shape[-1]] = chosen
        return picked


class _RequestKeys:
    """The index keys of one request, up to the tokens at hand."""

    def __init__(self, pool: torch.Tensor, wave: WaveLayout, request: int, start: int) -> None:
        self._pool, self._wave, self._request, self._start = pool, wave, request, start

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> torch.Tensor:
        del layer_idx
        slots = self._wave.at_hand.request_slots(self._request)[: self._start + keys.shape[1]]
        self._pool[slots[self._start :], 0] = keys[0].to(self._pool.dtype)
        return self._pool[slots, 0][None]


def attend_to_picked(
    module: Any, query: torch.Tensor, picked: torch.Tensor, pools: tuple[torch.Tensor, ...], scale: float
) -> torch.Tensor:
    """Attention of a wave's tokens to picked ones of their requests.

    Args:
        module: transformers' attention module; its ``kv_b_proj`` makes keys and values of latents.
        query: ``[1, heads, tokens, dim]``, the rotated part last.
        picked: as ``PagedIndexer`` returns.
        pools: latents ``[rows, 1, rank]`` and rotary keys ``[rows, 1, rotary dim]``.
        scale: factor on the scores.

    Returns:
        ``[1, tokens, heads, value dim]``.
    """
    wave, (latents, rotary) = current_wave(), (pool[:, 0] for pool in pools)
    to_keys, to_values = expansion(module, query)
    queries = torch.cat(absorbed_queries(query, to_keys), -1)
    read = queries.new_empty(*queries.shape[:2], latents.shape[1])
    width = (latents.shape[1] + rotary.shape[1]) * query.element_size()
    for rows, request, start, end in _tiles(wave, width, picked.shape[-1]):
        positions = picked[0, rows, : min(picked.shape[-1], end)].long()
        slots = wave.at_hand.request_slots(request)[:end][positions.clamp(min=0)]
        values = latents[slots]
        keys = torch.cat([values, rotary[slots]], -1)
        scores = torch.bmm(queries[rows], keys.transpose(1, 2)).float() * scale
        scores = scores.masked_fill((positions == NOT_PICKED)[:, None], float("-inf"))
        read[rows] = torch.bmm(torch.softmax(scores, -1).to(values.dtype), values)
        del start
    return values_of(read, to_values)


def _tiles(wave: WaveLayout, row_bytes: int, columns: int = 0) -> Iterator[tuple[slice, int, int, int]]:
    """Rows of the wave, their request, and its positions from and to, a few rows at a time.

    Args:
        row_bytes: that a row takes for each token that it looks at.
        columns: tokens that a row looks at; 0 for all before it.
    """
    first = 0
    for request, (start, length) in enumerate(zip(wave.starts, wave.lengths, strict=True)):
        most = max(1, _TILE_BYTES // (row_bytes * (columns or start + length)))
        for at in range(0, length, most):
            count = min(most, length - at)
            yield slice(first + at, first + at + count), request, start + at, start + at + count
        first += length
