"""Causal attention over paged KV, plugged into transformers' layers by name.

Where there is a kernel that reads the pages in place (``native_attention``), it does. Elsewhere they are gathered, and
torch's kernels compute: all chunks of a wave in one call on a GPU that has a kernel for it (``packed_attention``), else
chunk by chunk. Only the last rows of a request are queries, so the causal mask is aligned to the lower right, and
no mask of queries times keys is built where a kernel can do without, elsewhere one of a tile of queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.attention.indexed_attention import attend_to_picked
from wavepp_worker.model.cpu.native_attention import attend_in_place
from wavepp_worker.model.gpu.packed_attention import attend_packed, can_pack
from wavepp_worker.model.kv.wave_layout import current_wave

ATTENTION = "wavepp_paged"
_TILE = 256
_IGNORED = {
    "cache_position",
    "is_causal",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "use_cache",
}


def paged_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the current wave, in the form of transformers' attention interface.

    Args:
        module: the calling attention module; its ``layer_idx`` numbers the layer.
        query: ``[1, heads, tokens, dim]``.
        key: as ``PagedCache.update`` returns it, possibly expanded to more heads.
        value: likewise, of any dim.
        attention_mask: must be None, but where ``indices`` are given.
        scaling: factor on the scores; default ``dim ** -0.5``.
        dropout: unused, as nothing trains.
        sliding_window: tokens that a token sees, itself included.
        softcap: bound of the scores' tanh.
        s_aux: ``[heads]`` logits of attention sinks.
        indices: what each token reads, as ``PagedIndexer`` returns; for all else the pools are read whole.

    Returns:
        ``[1, tokens, heads, value dim]`` and None.

    Raises:
        WaveppError: the architecture asks for something that this attention does not do.
    """
    unknown = sorted(name for name, given in kwargs.items() if given is not None and name not in _IGNORED)
    masked = attention_mask is not None and indices is None
    if unknown or masked or not getattr(module, "is_causal", True):
        raise WaveppError(
            f"the attention of {type(module).__name__} needs {', '.join(unknown) or 'a mask of its own'}, "
            "which paged attention does not support"
        )
    wave = current_wave()
    at_hand = wave.at_hand
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    wave.windows[layer] = sliding_window
    untouched = wave.answered is not None and key is wave.answered[0] and value is wave.answered[1]
    if softcap is None and s_aux is None:
        wave.only_masked.add(layer)
        if untouched:
            wave.as_answered[layer] = query.shape[1]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if indices is not None:
        if wave.pools is None:
            # While shapes are learned there is nothing to read.
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None
        return attend_to_picked(module, query, indices, wave.pools, scale), None
    if wave.pools is not None and wave.flashinfer is not None:
        if layer in wave.absorbing:
            assert wave.flashinfer.latent is not None, "it took the layer when the stage started"
            return wave.flashinfer.latent.attend(
                module, query, *wave.pools, at_hand, wave.block_size, scale
            ), None
        return wave.flashinfer.attend(
            query, *wave.pools, at_hand, wave.block_size, scale, sliding_window
        ), None
    if wave.pools is not None:
        return attend_in_place(
            query, *wave.pools, at_hand.spans, wave.block_size, scale, sliding_window
        ), None
    if wave.decode:
        out = _decode(query, key, value, at_hand.decode_mask(sliding_window), scale, softcap, s_aux)
        return out, None
    if softcap is None and s_aux is None and can_pack(query, value):
        return attend_packed(query, key, value, at_hand, scale, sliding_window), None
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    at_query = at_key = 0
    for start, first, length in zip(wave.starts, at_hand.firsts, wave.lengths, strict=True):
        rows, columns = slice(at_query, at_query + length), slice(at_key, at_key + start - first + length)
        at_query, at_key = rows.stop, columns.stop
        q, k, v = query[:, :, rows], key[:, :, columns], value[:, :, columns]
        window = (
            sliding_window if sliding_window is not None and sliding_window < start - first + length else None
        )
        if softcap is not None or s_aux is not None:
            part = attend_tiled(q, k, v, scale, window, softcap, s_aux)
        elif window is not None or query.device.type not in ("cpu", "cuda"):
            part = attend_tiled(q, k, v, scale, window, None, None)
        elif query.device.type == "cpu":
            part = _causal_cpu(q, k, v, scale)
        else:
            part = _causal_cuda(q, k, v, scale)
        out[:, rows] = part.transpose(1, 2)
    return out, None


AttentionInterface.register(ATTENTION, paged_attention)


def _causal_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """The flash kernel over the prefix without a mask and over the chunk with the causal one, then merged."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    batch, heads, length, dim = q.shape
    groups, prefix, value_dim = k.shape[1], k.shape[2] - length, v.shape[-1]
    q, v = q.contiguous(), _widened(v, dim)
    own, own_lse = flash(q, k[:, :, prefix:], v[:, :, prefix:], 0.0, True, scale=scale)
    if not prefix:
        return own[..., :value_dim]
    folded = q.view(batch, groups, heads // groups * length, dim)
    before, before_lse = flash(folded, k[:, :, :prefix], v[:, :, :prefix], 0.0, False, scale=scale)
    before = before.reshape(own.shape)
    before_lse = before_lse.reshape(own_lse.shape)
    share = torch.sigmoid(before_lse - own_lse).unsqueeze(-1)
    return torch.lerp(own.float(), before.float(), share).to(q.dtype)[..., :value_dim]


def _causal_cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    value_dim = v.shape[-1]
    v = _widened(v, q.shape[-1])
    if groups > 1:
        # The kernels that know a lower-right mask want as many key heads as query heads.
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = causal_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[..., :value_dim]


def attend_tiled(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The general case: some rows of queries at a time against the keys that they can see."""
    batch, heads, length, dim = q.shape
    groups = k.shape[1]
    out = q.new_empty(batch, heads, length, v.shape[-1])
    for rows, columns, mask in _tiles(length, k.shape[2], window, q.device):
        tile = q[:, :, rows].reshape(batch, groups, -1, dim)
        part = _attend(
            tile,
            k[:, :, columns],
            v[:, :, columns],
            mask.repeat(heads // groups, 1),
            scale,
            softcap,
            None if sinks is None else sinks.repeat_interleave(len(mask)).view(1, groups, -1, 1),
        )
        out[:, :, rows] = part.reshape(batch, heads, len(mask), -1)
    return out


def _tiles(
    length: int, total: int, window: int | None, device: torch.device
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Row slice, column slice and bool mask ``[rows, columns]`` of each tile of queries."""
    prefix = total - length
    for first in range(0, length, _TILE):
        end = min(first + _TILE, length)
        low = 0 if window is None else max(0, prefix + first - window + 1)
        at_query = torch.arange(prefix + first, prefix + end, device=device)[:, None]
        at_key = torch.arange(low, prefix + end, device=device)[None]
        mask = at_key <= at_query
        if window is not None:
            mask &= at_key > at_query - window
        yield slice(first, end), slice(low, prefix + end), mask


def _decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query row for each request: the query heads that share a key head become its rows."""
    batch, groups = key.shape[:2]
    heads, dim = query.shape[1], query.shape[3]
    rows = query[0].transpose(0, 1).reshape(batch, groups, heads // groups, dim)
    out = _attend(
        rows, key, value, mask, scale, softcap, None if sinks is None else sinks.view(1, groups, -1, 1)
    )
    return out.reshape(1, batch, heads, value.shape[-1])


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """``q`` ``[batch, heads, rows, dim]`` over as many key heads; ``sinks`` broadcast to ``[..., 1]``."""
    if softcap is None and sinks is None:
        value_dim = v.shape[-1]
        wide = _widened(v, q.shape[-1])
        return F.scaled_dot_product_attention(q, k, wide, attn_mask=mask, scale=scale)[..., :value_dim]
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], -1)
    weights = torch.softmax(scores, -1).to(v.dtype)
    return weights[..., : k.shape[2]] @ v


def _widened(v: torch.Tensor, dim: int) -> torch.Tensor:
    """Values padded to the keys' dim, without which the kernels fall back to the slow path (MLA)."""
    return F.pad(v, (0, dim - v.shape[-1])) if v.shape[-1] < dim else v
