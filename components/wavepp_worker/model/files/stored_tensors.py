"""A quantised checkpoint's tensors as plain weights, each read and expanded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import tensor_entries, weight_files
from wavepp_worker.model.files.dequantise import awq, packed, scaled
from wavepp_worker.model.files.quantisation import Scheme, StoredWeight, stored_weights


class ExpandedTensor:
    """Stands for one weight where transformers' loader expects a slice of a file: ``tensor[...]`` reads it.

    Attributes:
        bytes_read: so far, from the files.
    """

    def __init__(self, files: Mapping[str, Any], scheme: Scheme, name: str, weight: StoredWeight) -> None:
        self._files = files
        self._scheme = scheme
        self._name = name
        self._weight = weight
        self.bytes_read = 0

    def __getitem__(self, _: Any) -> torch.Tensor:
        first, *others = map(self._read, self._weight.parts)
        try:
            if self._weight.form == "scaled":
                scale, zero = others
                return scaled(first, scale, zero, self._scheme.blocks)
            if self._weight.form == "packed":
                scale, shape, zero, groups = others
                rows, columns = shape.tolist()
                return packed(
                    first, scale, (rows, columns), self._scheme.bits, zero, groups, self._scheme.blocks
                )
            if self._weight.form == "awq":
                scale, zeros = others
                return awq(first, scale, zeros, self._scheme.blocks)
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise ConfigError(
                f"model: {self._name} cannot be computed from {', '.join(filter(None, self._weight.parts))}, as they "
                f"do not fit together ({error}); download the model again"
            ) from error
        return first

    def _read(self, part: str) -> Any:
        if not part:
            return None
        tensor = self._files[part].get_tensor(part)
        self.bytes_read += tensor.nbytes
        return tensor


def expanded_tensors(model_dir: Path, scheme: Scheme, open_files: ExitStack) -> dict[str, ExpandedTensor]:
    """All weights of a quantised checkpoint by the names they have in a model; nothing is read yet.

    Args:
        open_files: keeps the files open, as long as weights are read.

    Raises:
        ConfigError: a file is missing or damaged, or a weight has no scale; names ``model``.
    """
    files: dict[str, Any] = {}
    for file in weight_files(model_dir):
        opened = open_files.enter_context(safe_open(file, framework="pt"))
        files.update(dict.fromkeys(opened.keys(), opened))
    weights = stored_weights(scheme, tensor_entries(model_dir))
    return {name: ExpandedTensor(files, scheme, name, weight) for name, weight in weights.items()}
