"""LoRA adapters with random weights, as PEFT saves them, and models into which they are merged by hand."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE = ("gate_proj", "up_proj", "down_proj")


def make_adapter(
    directory: Path,
    model: Path,
    targets: Sequence[str] = (*ATTENTION, *DENSE),
    *,
    seed: int = 0,
    **config: Any,
) -> Path:
    """An adapter of every linear layer of ``model`` whose name ends with one of ``targets``.

    Args:
        config: of the adapter; ``r`` is 4 and ``lora_alpha`` 8.
    """
    directory.mkdir(parents=True)
    said = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(said))
    draw, tensors = torch.Generator().manual_seed(seed), {}
    for name, weight in load_file(model / "model.safetensors").items():
        if weight.ndim == 2 and name.removesuffix(".weight").endswith(tuple(targets)):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            rank = said["r"]
            for pattern, other in (said.get("rank_pattern") or {}).items():
                rank = other if re.match(rf"(.*\.)?({pattern})$", module) else rank
            rows, columns = weight.shape
            tensors[f"{module}.lora_A.weight"] = torch.randn(rank, columns, generator=draw) * columns**-0.5
            tensors[f"{module}.lora_B.weight"] = torch.randn(rows, rank, generator=draw) * 0.3
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    return directory


def merge(directory: Path, model: Path, adapter: Path) -> Path:
    """A copy of ``model`` with an adapter added to its weights, in float32."""
    shutil.copytree(model, directory)
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights, tensors = (
        load_file(model / "model.safetensors"),
        load_file(adapter / "adapter_model.safetensors"),
    )
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            alpha = config["lora_alpha"]
            for pattern, other in (config.get("alpha_pattern") or {}).items():
                alpha = other if re.match(rf"(.*\.)?({pattern})$", module) else alpha
            scale = alpha / (math.sqrt(len(a)) if config.get("use_rslora") else len(a))
            weight = f"{module.removeprefix('base_model.model.')}.weight"
            weights[weight] = weights[weight] + scale * tensors[f"{module}.lora_B.weight"] @ a
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
