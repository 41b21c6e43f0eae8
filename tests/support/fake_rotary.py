"""FlashInfer's rotary embedding as its documentation and its checks have it, over CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wavepp_worker.model import torch_loader
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.gpu import flashinfer_rotary
from wavepp_worker.model.gpu.flashinfer_rotary import FlashInferRotary
from wavepp_worker.model.stage_loader import load_stage


class Rotary:
    """The kernel.

    Attributes:
        calls: so far.
        pairs: it takes pairs that lie side by side, which is another embedding.
        spoils: what else it does wrong, to queries or keys ``[tokens, heads, dim]`` that are rotated.
    """

    def __init__(self, pairs: bool = False, spoils: Callable[[torch.Tensor], Any] = lambda _: None) -> None:
        self.calls = 0
        self.pairs = pairs
        self.spoils = spoils

    def apply(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        head_size: int,
        cos_sin_cache: torch.Tensor,
        is_neox: bool = True,
    ) -> None:
        self.calls += 1
        assert positions.dtype in (torch.int32, torch.int64)
        assert cos_sin_cache.dtype is torch.float32
        assert positions.is_contiguous()
        assert cos_sin_cache.is_contiguous()
        assert query.dtype is key.dtype
        assert len(query) == len(key) == len(positions)
        cos, sin = cos_sin_cache[positions.long()].unsqueeze(1).chunk(2, -1)
        for each in (query, key):
            heads = each.view(len(each), -1, head_size)
            x = heads.float()
            apart = (
                x.unflatten(-1, (-1, 2)).transpose(-1, -2)
                if self.pairs or not is_neox
                else x.unflatten(-1, (2, -1))
            )
            a, b = apart.unbind(-2)
            heads.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))
            self.spoils(heads)


def rotary(patch: pytest.MonkeyPatch, fake: Rotary, dtype: torch.dtype = torch.float32) -> FlashInferRotary:
    """The kernel's place in a stage, with small heads allowed."""
    patch.setattr(flashinfer_rotary, "_DIMS", (8, 16, 64))
    return FlashInferRotary(torch.device("cpu"), dtype, fake.apply)


def load_as_on_gpu(found: FlashInferRotary | None, *model: Any) -> Any:
    """A stage as the loader makes it on a GPU, on the CPU and without this project's kernels."""
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(native_library, "library", lambda: None)
        inner.setattr(torch_loader, "is_gpu", lambda device: True)
        inner.setattr(torch_loader, "find_rotary", lambda *_: found)
        return load_stage(*model)
