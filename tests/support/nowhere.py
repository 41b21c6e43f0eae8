"""A device without numbers: what would have the host wait for a GPU raises there."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from wavepp_worker.model.kv import state_memory, wave_layout, window_layout, window_memory
from wavepp_worker.model.torch_stage import TorchStage

NOWHERE = torch.device("meta")
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default}


class NoWaits(TorchDispatchMode):
    """Fails on operations on ``NOWHERE`` for which a GPU's host would wait, but for those which torch fails on there.

    Those are whatever gives the host a number, or a tensor whose size depends on numbers. Here: copies from pageable
    memory, tensors of the host among those of the device, and masks as an index.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        taken = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        # A number of the host's goes along with the kernel.
        devices = {each.device for each in taken if each.dim() or each.device == NOWHERE}
        result = func(*args, **(kwargs or {}))
        made = {each.device for each in tree_leaves(result) if isinstance(each, torch.Tensor)}
        # Without numbers none is copied.
        copied = devices and made - devices and func is not torch.ops.aten.empty_like.default
        if len(devices) > 1 or copied:
            raise AssertionError(f"{func} takes a tensor of the host's to the device, and waits for it")
        if func in _INDEXING and NOWHERE in devices and any(each.dtype is torch.bool for each in taken[1:]):
            raise AssertionError(f"{func} has to know how many of a mask are set")
        return result


class Nowhere:
    """A stage's copy there.

    Attributes:
        brought: what was taken to the device, by the way that does not wait.
    """

    def __init__(self, stage: TorchStage, patch: pytest.MonkeyPatch) -> None:
        self.brought: list[torch.Tensor] = []
        self.stage: TorchStage = copy.copy(stage)
        self.stage._model = copy.deepcopy(stage._model).to(NOWHERE, torch.bfloat16)
        self.stage.device, self.stage.dtype = NOWHERE, torch.bfloat16
        patch.setattr(self.stage, "_brought", self._bring)
        for module in (wave_layout, window_layout, window_memory, state_memory):
            patch.setattr(module, "to_device", self._bring)
        for owner, name in ((torch, "tensor"), (torch, "as_tensor"), (torch.Tensor, "new_tensor")):
            patch.setattr(owner, name, _refusing(getattr(owner, name)))

    def forward(self, *wave: Any) -> Any:
        with NoWaits():
            return self.stage.forward(*wave)

    def _bring(self, tensor: torch.Tensor, device: torch.device = NOWHERE) -> torch.Tensor:
        self.brought.append(tensor)
        return torch.empty_like(tensor, device=device)


def _refusing(make: Any) -> Any:
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        assert tensor.device != NOWHERE, "made of numbers of the host's: that is a copy which waits"
        return tensor

    return made
