"""Which tensors of a checkpoint are quantised weights, and what belongs to each. Needs no tensor library."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wavepp_worker.errors import ConfigError

_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
"""Of compressed-tensors: formats that hold one number, or several packed into 32 bits, for each weight."""
_KNOWN = f"fp8, compressed-tensors ({', '.join(_FORMATS)}) and awq (version gemm)"
_BITS = {2, 4, 8}
"""Of packed numbers, none of which is on both sides of a word's end."""
_NARROW = {"F8_E4M3", "F8_E5M2", "I8"}
_FLOATS = {"F64", "F32", "F16", "BF16"}
_FACTORS = {"scaled": {*_FLOATS, "F8_E8M0", "U8"}, "packed": _FLOATS, "awq": _FLOATS}
"""What scales are stored as, by form."""
_SCALES = ("_scale_inv", "_scale")
_PACKED = ("_packed", "_scale", "_shape", "_zero_point", "_g_idx")
_AWQ = ("qweight", "scales", "qzeros")


Block = tuple[int, int]
"""Rows and columns of a weight that share a scale; 0 for all of them."""
TENSOR, ROW = (0, 0), (1, 0)


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint's weights are quantised.

    Attributes:
        method: as ``quantization_config`` names it: ``fp8``, ``compressed-tensors`` or ``awq``.
        blocks: that a scale may be of; each weight has its scales in one of these ways.
        bits: of a number that is packed with others.
        zeros: whether each weight has zero points; otherwise those that have some say so by having them.
    """

    method: str
    blocks: tuple[Block, ...] = (TENSOR, ROW)
    bits: int = 8
    zeros: bool = False


@dataclass(frozen=True)
class StoredWeight:
    """One weight as a model has it, and what it is stored as.

    Attributes:
        form: ``plain``; ``scaled``: narrow numbers and scales; ``packed``: several in 32 bits, a row after the other;
            ``awq``: packed and transposed.
        numbers: of the weight.
        parts: names of the tensors that it is made of, in the order of the form; "" for one that is not there.
    """

    form: Literal["plain", "scaled", "packed", "awq"]
    numbers: int
    parts: tuple[str, ...]


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme that a ``config.json`` names; None for plain weights.

    Raises:
        ConfigError: nobody here can undo it; names ``model`` and the scheme.
    """
    said = config.get("quantization_config")
    if not said:
        return None
    try:
        return _named(said)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise ConfigError(
            f"model: its quantization_config cannot be read ({error}); download config.json again"
        ) from error


def _named(said: Mapping[str, Any]) -> Scheme:
    method = str(said.get("quant_method"))
    if method == "fp8":
        block = said.get("weight_block_size")
        return Scheme(method) if block is None else Scheme(method, (_block(block),))
    if method == "compressed-tensors" and said.get("transform_config"):
        method = f"{method} with rotations of what layers take in (transform_config)"
    elif method == "compressed-tensors":
        groups = list((said.get("config_groups") or {}).values())
        formats = {
            str(said.get("format")),
            *(str(group["format"]) for group in groups if group.get("format")),
        }
        unknown = sorted(formats - {*_FORMATS, "mixed-precision"})
        weights = [group.get("weights") or {} for group in groups]
        # Groups of 8-bit floats beside integers are not packed.
        bits = {int(each.get("num_bits", 8)) for each in weights if each.get("type") == "int"} or {8}
        if not unknown and len(bits) == 1 and bits <= _BITS:
            blocks = tuple(dict.fromkeys(map(_block_of, weights))) or (TENSOR, ROW)
            zeros = bool(weights) and all(each.get("symmetric", True) is False for each in weights)
            return Scheme(method, blocks, bits.pop(), zeros)
        unknown = unknown or [f"{', '.join(formats)} with {' and '.join(map(str, sorted(bits)))} bits"]
        method = f"{method} in the format {unknown[0]}"
    elif method == "awq":
        version = str(said.get("version", "gemm")).lower()
        if (version, said.get("bits", 4)) == ("gemm", 4):
            return Scheme(method, (_group(said.get("group_size", 128)),), 4)
        method = f"awq of version {version} with {said.get('bits', 4)} bits"
    raise ConfigError(
        f"model: its weights are quantised as {method}, which cannot be undone here; {_KNOWN} can, so choose a "
        "checkpoint in one of these, or one that is not quantised"
    )


def _block_of(weights: Mapping[str, Any]) -> Block:
    """Of a group of compressed-tensors; what it leaves out is what its authors take for it."""
    group, block = weights.get("group_size"), weights.get("block_structure")
    strategy = weights.get("strategy")
    if strategy is None:
        strategy = "tensor" if group is None else "channel" if group == -1 else "group"
    if strategy == "block":
        return _block(block)
    return TENSOR if strategy == "tensor" else ROW if strategy == "channel" else _group(group)


def _group(columns: Any) -> Block:
    """Of a group of columns in a row; -1 for the whole row."""
    return ROW if columns == -1 else _block((1, columns))


def _block(said: Any) -> Block:
    rows, columns = said
    if not all(isinstance(each, int) and each > 0 for each in (rows, columns)):
        raise ValueError(f"scales of {rows!r} rows and {columns!r} columns")
    return rows, columns


def stored_weights(
    scheme: Scheme | None, tensors: Mapping[str, Mapping[str, Any]]
) -> dict[str, StoredWeight]:
    """The weights of a checkpoint by the names they have in a model.

    Args:
        tensors: the entries of all files' headers (``dtype``, ``shape``) by name.

    Raises:
        ConfigError: a weight of narrow numbers has no scale, or one of which ``scheme`` says nothing, another one has,
            a scale is no number, or zero points are missing; names ``model``.
    """
    found = {} if scheme is None else dict(_quantised(scheme, tensors))
    for weight in found.values():
        scale = weight.parts[1]
        if scale and tensors[scale]["dtype"] not in _FACTORS[weight.form]:
            raise ConfigError(
                f"model: {scale} is stored as {tensors[scale]['dtype']}, which no scale is; download the model again"
            )
        if scheme is not None and scheme.zeros and not _has_zeros(weight):
            raise ConfigError(
                f"model: {weight.parts[0]} has no zero point beside it, which quantization_config says it has "
                "(symmetric is false); download the model again"
            )
    taken = {part for weight in found.values() for part in weight.parts}
    for name, entry in tensors.items():
        if name not in taken and not name.endswith(("activation_scale", "input_scale")):
            if scheme is not None and entry["dtype"] in _NARROW:
                raise ConfigError(f"model: {name} is stored as {entry['dtype']} and has no scale beside it")
            if scheme is not None and (beside := _scale_of(name, tensors)):
                # Without its scale it would be other numbers, of which nobody would know.
                raise ConfigError(
                    f"model: {name} is stored as {entry['dtype']} and has {beside} beside it, which belongs to numbers "
                    f"in {', '.join(sorted(_NARROW))}; download the model again"
                )
            if scheme is None and entry["dtype"] in _NARROW and (beside := _scale_of(name, tensors)):
                raise ConfigError(
                    f"model: {name} is stored as {entry['dtype']} and has {beside} beside it, but config.json has no "
                    "quantization_config that says how they belong together; download it again"
                )
            found[name] = StoredWeight("plain", math.prod(entry["shape"]), (name,))
    return found


def _quantised(
    scheme: Scheme, tensors: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, StoredWeight]]:
    for name, entry in tensors.items():
        shape: Sequence[int] = entry["shape"]
        if name.endswith("weight_packed"):
            stem = name.removesuffix("_packed")
            parts = tuple(stem + suffix if stem + suffix in tensors else "" for suffix in _PACKED)
            yield stem, StoredWeight("packed", 32 // scheme.bits * math.prod(shape), parts)
        elif name.endswith(".qweight"):
            stem = name.removesuffix("qweight")
            parts = tuple(stem + part if stem + part in tensors else "" for part in _AWQ)
            yield f"{stem}weight", StoredWeight("awq", 8 * math.prod(shape), parts)
        elif entry["dtype"] in _NARROW:
            scale = _scale_of(name, tensors)
            if scale is not None:
                zero = f"{name}_zero_point" if f"{name}_zero_point" in tensors else ""
                yield name, StoredWeight("scaled", math.prod(shape), (name, scale, zero))


def _has_zeros(weight: StoredWeight) -> bool:
    return any(part.endswith(("_zero_point", "qzeros")) for part in weight.parts)


def _scale_of(name: str, tensors: Mapping[str, Mapping[str, Any]]) -> str | None:
    return next((name + suffix for suffix in _SCALES if name + suffix in tensors), None)
