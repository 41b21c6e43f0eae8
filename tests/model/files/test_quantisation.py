from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.quantisation import Scheme, StoredWeight, scheme_of, stored_weights


def compressed(form: str, *weights: dict[str, Any]) -> dict[str, Any]:
    groups = {f"group_{n}": {"weights": each} for n, each in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        (None, None),
        ({"quant_method": "fp8", "weight_block_size": [128, 64]}, Scheme("fp8", ((128, 64),))),
        ({"quant_method": "fp8"}, Scheme("fp8")),
        (
            compressed("pack-quantized", {"type": "int", "num_bits": 4, "group_size": 32}),
            Scheme("compressed-tensors", ((1, 32),), 4),
        ),
        (
            compressed(
                "mixed-precision",
                {"type": "int", "num_bits": 4, "strategy": "channel", "group_size": None},
                {"type": "float", "num_bits": 8},
                {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 64]},
            ),
            Scheme("compressed-tensors", ((1, 0), (0, 0), (128, 64)), 4),
        ),
        (
            {"quant_method": "awq", "bits": 4, "version": "GEMM", "group_size": 64},
            Scheme("awq", ((1, 64),), 4),
        ),
        ({"quant_method": "awq", "group_size": -1}, Scheme("awq", ((1, 0),), 4)),
    ],
)
def test_schemes_are_told_from_the_configuration(said: dict[str, Any] | None, scheme: Scheme | None) -> None:
    assert scheme_of({"quantization_config": said}) == scheme
    assert scheme_of({}) is None


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"quant_method": "gptq"}, "gptq"),
        ({"bits": 4}, "None"),
        (compressed("nvfp4-pack-quantized"), "compressed-tensors in the format nvfp4-pack-quantized"),
        (
            compressed("pack-quantized", {"type": "int", "num_bits": 3}),
            "compressed-tensors in the format pack-quantized with 3 bits",
        ),
        (
            compressed("pack-quantized", {"type": "int", "num_bits": 4}, {"type": "int", "num_bits": 8}),
            "compressed-tensors in the format pack-quantized with 4 and 8 bits",
        ),
        ({"quant_method": "awq", "version": "gemv"}, "awq of version gemv with 4 bits"),
        (
            compressed("pack-quantized", {"type": "int", "num_bits": 4}) | {"transform_config": {"R1": {}}},
            "compressed-tensors with rotations of what layers take in .transform_config.",
        ),
    ],
)
def test_others_are_refused_by_name(said: dict[str, Any], named: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^model: its weights are quantised as {named}, which cannot be undone"
    ):
        scheme_of({"quantization_config": said})


def entry(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape)}


def test_each_weight_is_made_of_what_belongs_to_it() -> None:
    found = stored_weights(
        Scheme("compressed-tensors", bits=4),
        {
            "norm.weight": entry("BF16", 8),
            "a.weight": entry("F8_E4M3", 4, 8),
            "a.weight_scale": entry("F32", 4, 1),
            "a.input_scale": entry("F32"),
            "b.weight_packed": entry("I32", 4, 1),
            "b.weight_scale": entry("BF16", 4, 1),
            "b.weight_shape": entry("I64", 2),
            "c.qweight": entry("I32", 8, 1),
            "c.qzeros": entry("I32", 1, 1),
            "c.scales": entry("F16", 1, 8),
        },
    )
    assert found == {
        "norm.weight": StoredWeight("plain", 8, ("norm.weight",)),
        "a.weight": StoredWeight("scaled", 32, ("a.weight", "a.weight_scale", "")),
        "b.weight": StoredWeight(
            "packed", 32, ("b.weight_packed", "b.weight_scale", "b.weight_shape", "", "")
        ),
        "c.weight": StoredWeight("awq", 64, ("c.qweight", "c.scales", "c.qzeros")),
    }


def test_plain_checkpoints_are_taken_as_they_are() -> None:
    odd = {"a.weight": entry("F8_E4M3", 4, 8), "a_scale": entry("F32", 1)}
    assert stored_weights(None, odd) == {
        name: StoredWeight("plain", numbers, (name,)) for name, numbers in zip(odd, (32, 1), strict=True)
    }
    with pytest.raises(ConfigError, match=r"^model: a\.weight .* config\.json has no quantization_config"):
        stored_weights(None, odd | {"a.weight_scale": entry("F32", 1)})
    with pytest.raises(ConfigError, match=r"a\.weight is stored as I8 and has no scale beside it"):
        stored_weights(Scheme("fp8"), {"a.weight": entry("I8", 4, 8)})


def test_a_zero_point_that_is_promised_is_missed() -> None:
    weights = {"type": "int", "num_bits": 4, "group_size": 32, "symmetric": False}
    scheme = scheme_of({"quantization_config": compressed("pack-quantized", weights)})
    tensors = {"a.weight_packed": entry("I32", 4, 4), "a.weight_scale": entry("F32", 4, 1)}
    assert stored_weights(scheme, tensors | {"a.weight_zero_point": entry("I32", 1, 1)})
    with pytest.raises(ConfigError, match=r"^model: a\.weight_packed has no zero point beside it"):
        stored_weights(scheme, tensors)


@pytest.mark.parametrize("dtype", ["U8", "BF16", "I32"])
@pytest.mark.parametrize("suffix", ["_scale", "_scale_inv"])
def test_no_scale_is_left_out_for_what_its_weight_is_stored_as(dtype: str, suffix: str) -> None:
    tensors = {"a.weight": entry(dtype, 4, 8), f"a.weight{suffix}": entry("F32", 4, 1)}
    with pytest.raises(
        ConfigError, match=rf"^model: a\.weight is stored as {dtype} and has a\.weight{suffix} "
    ):
        stored_weights(Scheme("fp8"), tensors)


@pytest.mark.parametrize(
    ("weight", "scale"),
    [
        (("a.weight", "F8_E4M3"), ("a.weight_scale_inv", "I32")),
        (("a.weight_packed", "I32"), ("a.weight_scale", "U8")),
        (("a.qweight", "I32"), ("a.scales", "I64")),
    ],
)
def test_what_is_no_scale_is_refused(weight: tuple[str, str], scale: tuple[str, str]) -> None:
    tensors = {name: entry(dtype, 4, 8) for name, dtype in (weight, scale)}
    with pytest.raises(ConfigError, match=f"^model: {scale[0]} is stored as {scale[1]}, which no scale is"):
        stored_weights(Scheme("fp8"), tensors)


@pytest.mark.parametrize(
    "said",
    [
        "fp8",
        5,
        ["fp8"],
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "awq", "group_size": 0},
        compressed("pack-quantized", {"type": "int", "num_bits": 4, "strategy": "group"}),
        compressed("pack-quantized") | {"config_groups": [1]},
    ],
)
def test_what_is_no_scheme_is_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model: its quantization_config cannot be read \("):
        scheme_of({"quantization_config": said})
