"""Tiny models with quantised weights, and their twins: the same numbers as plain weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.model_files import edit_json

Tensors = dict[str, torch.Tensor]
BLOCK = (24, 16)
"""Divides none of the weights' rows evenly."""
GROUP = 16


def quantise(source: Path, directory: Path, scheme: str) -> tuple[Path, Path]:
    """Quantise the projections of ``source`` as ``scheme``, a key of ``SCHEMES``; where that and its twin are."""
    stored, twin = Path(shutil.copytree(source, directory / "stored")), directory / "twin"
    shutil.copytree(source, twin)
    write, config = SCHEMES[scheme]
    quantised: Tensors = {}
    plain: Tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if "_proj" in name and weight.ndim > 1:
            parts, plain[name] = write(name, weight)
            quantised.update(parts)
        else:
            quantised[name] = plain[name] = weight
    save_file(quantised, stored / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})
    edit_json(stored / "config.json", quantization_config=config)
    return stored, twin


def fp8(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """In blocks, as DeepSeek, GLM and MiniMax ship."""
    high, wide = BLOCK
    rows, columns = weight.shape[-2:]
    narrow, twin = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    scales = torch.empty(*weight.shape[:-2], -(-rows // high), -(-columns // wide))
    for i in range(scales.shape[-2]):
        for j in range(scales.shape[-1]):
            at = (..., slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
            scale = weight[at].abs().amax((-2, -1), keepdim=True) / 448
            narrow[at] = (weight[at] / scale).to(torch.float8_e4m3fn)
            twin[at] = narrow[at].float() * scale
            scales[..., i, j] = scale[..., 0, 0]
    return {name: narrow, f"{name}_scale_inv": scales}, twin


def channel(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    narrow = (weight / scale).to(torch.float8_e4m3fn)
    return {name: narrow, f"{name}_scale": scale}, narrow.float() * scale


def tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    narrow = (weight / scale).to(torch.float8_e4m3fn)
    return {name: narrow, f"{name}_scale_inv": scale}, narrow.float() * scale


def packed(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """4 bits with a zero point, in groups of columns."""
    rows, columns = weight.shape
    scale = weight.view(rows, -1, GROUP).abs().amax(2) / 7
    zero = torch.arange(scale.numel()).view(scale.shape) % 3 - 1
    by_column = torch.arange(columns) // GROUP
    numbers = (weight / scale[:, by_column] + zero[:, by_column]).round().clamp(-8, 7).int()
    twin = (numbers - zero[:, by_column]).float() * scale[:, by_column]
    parts = {
        f"{name}_packed": _pack(numbers + 8),
        f"{name}_scale": scale,
        f"{name}_shape": torch.tensor([rows, columns]),
        f"{name}_zero_point": _pack(zero.T + 8).T.contiguous(),
    }
    return parts, twin


def awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """4 bits, transposed; of eight columns the first four are in the even places."""
    turned = weight.T
    columns, rows = turned.shape
    scale = turned.reshape(-1, GROUP, rows).abs().amax(1) / 7
    zero = 7 + torch.arange(scale.numel()).view(scale.shape) % 3
    by_column = torch.arange(columns) // GROUP
    numbers = (turned / scale[by_column] + zero[by_column]).round().clamp(0, 15).int()
    twin = ((numbers - zero[by_column]).float() * scale[by_column]).T.contiguous()
    stem = name.removesuffix("weight")
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    parts = {
        f"{stem}qweight": _pack(numbers.view(columns, -1, 8)[..., order].flatten(1)),
        f"{stem}qzeros": _pack(zero.view(len(zero), -1, 8)[..., order].flatten(1)),
        f"{stem}scales": scale,
    }
    return parts, twin


def _pack(numbers: torch.Tensor) -> torch.Tensor:
    """4 bits each, ``[rows, columns]`` to int32 ``[rows, columns / 8]``, low bits first."""
    padded = torch.nn.functional.pad(numbers.long(), (0, -numbers.shape[1] % 8))
    words = (padded.view(len(padded), -1, 8) << (4 * torch.arange(8))).sum(2)
    return words.to(torch.int32)


def _groups(**weights: Any) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


SCHEMES: dict[str, tuple[Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]], dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": list(BLOCK), "fmt": "e4m3"}),
    "fp8-tensor": (tensor, {"quant_method": "fp8", "activation_scheme": "static"}),
    "float-quantized": (
        channel,
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": _groups(type="float", num_bits=8, strategy="channel"),
        },
    ),
    "pack-quantized": (
        packed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": _groups(type="int", num_bits=4, group_size=GROUP),
        },
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
}


def poison(directory: Path, kept: tuple[str, ...]) -> None:
    """Make weights not numbers, scales included, unless their names contain one of ``kept``."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, each in tensors.items():
        if not any(part in name for part in kept) and each.is_floating_point():
            tensors[name] = torch.full_like(each.float(), torch.nan).to(each.dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def stored_bytes(directory: Path, kept: tuple[str, ...]) -> int:
    """Bytes in the file of all tensors whose names contain one of ``kept``."""
    with (directory / "model.safetensors").open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    entries = ((name, entry) for name, entry in header.items() if name != "__metadata__")
    return sum(
        entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in entries
        if any(part in name for part in kept)
    )
