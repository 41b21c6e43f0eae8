"""Layers that keep what a test says."""

from __future__ import annotations

from wavepp_worker.model.kv.layer_cache import CachedTensor, LayerCache


def kept(*shapes: tuple[int, int], span: int = 0) -> LayerCache:
    """A layer that keeps tensors of ``(heads, dim)`` of each token, or of the last ``span`` ones."""
    tensors = tuple(CachedTensor(f"tensor {at}", shape) for at, shape in enumerate(shapes))
    if span:
        return LayerCache("sliding_attention", "sliding", tensors, span)
    return LayerCache("full_attention", "full", tensors)
