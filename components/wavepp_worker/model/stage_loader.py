"""Loading one stage of a model directory, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wavepp_worker.model.dtype_choice import dtype_name
from wavepp_worker.model.timed.timed_model import is_timed, read_timed_model
from wavepp_worker.model.timed.timed_stage import TimedStage

if TYPE_CHECKING:
    from wavepp_worker.model.lora import LoraAdapter
    from wavepp_worker.model.model_info import ModelInfo
    from wavepp_worker.model.torch_stage import TorchStage


def resolve_dtype(name: str, info: ModelInfo, device: str = "cpu") -> torch.dtype:
    """As ``dtype_name``, as a dtype.

    Raises:
        ConfigError: another name; names ``dtype``.
    """
    return getattr(torch, dtype_name(name, info.dtype, device))


def load_stage(
    model_dir: Path,
    layers: range,
    dtype: torch.dtype,
    device: str,
    adapters: Sequence[LoraAdapter] = (),
    kv_dtype: str = "auto",
) -> TorchStage | TimedStage:
    """Load ``layers`` of a model (with the embedding on the first stage, the norm and head on the last).

    Where ``dtype`` is the checkpoint's and the device is the CPU, weights are views of the files, shared by
    all processes of the host and paged in as they are used, but those that are packed (``make_native``). A timed
    model's directory gives a ``TimedStage``, whatever ``dtype`` and ``device`` are. Of ``adapters``, what they add to
    ``layers`` is loaded, and no more. ``kv_dtype`` is ``auto``, for ``dtype``, or ``fp8``.

    Raises:
        ConfigError: the directory, its architecture or the device cannot be used; the message names the key.
    """
    if is_timed(Path(model_dir)):
        return TimedStage(read_timed_model(Path(model_dir)), layers)
    # Imported late, as transformers takes seconds to import and a timed stage needs none of it.
    from wavepp_worker.model.torch_loader import load_torch_stage

    return load_torch_stage(Path(model_dir), layers, dtype, device, adapters, kv_dtype)
