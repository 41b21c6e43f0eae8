"""LoRA adapters in PEFT's directories: what they say, before any tensor is read. Needs no tensor library."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.checkpoint import read_header, read_json
from wavepp_worker.model.files.file_digest import file_digests

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight")
_OF_A_LAYER = re.compile(r"\blayers\.(\d{1,9})\.")
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "inputs that are averaged over groups (use_qalora)",
    "modules_to_save": "modules that are trained whole (modules_to_save)",
    "lora_bias": "biases of its own (lora_bias)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "target_parameters": "parameters that are no linear layers' (target_parameters)",
    "trainable_token_indices": "tokens of its own (trainable_token_indices)",
    "layer_replication": "layers several times (layer_replication)",
    "alora_invocation_tokens": "an invocation sequence (activated LoRA)",
}
_SUBTRACTED = re.compile(r"(pissa|corda).*|olora|loftq|lora_ga", re.IGNORECASE)
"""Values of ``init_lora_weights`` with which PEFT takes what an adapter began with from the model's own weights."""
_NOT_OF_TOKENS = "kv_b_proj"
"""Runs on what is cached, not on a wave's tokens."""


@dataclass(frozen=True)
class LoraPair:
    """What an adapter adds to one linear layer: ``scale * b @ (a @ x)``.

    Attributes:
        a: name of the tensor ``[rank, inputs]``.
        b: name of the tensor ``[outputs, rank]``.
    """

    a: str
    b: str
    scale: float


@dataclass(frozen=True)
class LoraAdapter:
    """One adapter.

    Attributes:
        name: that requests choose it by.
        path: its directory.
        identity: 32 hex digits of its content, equal wherever the same files lie.
        pairs: by the name of the linear layer in the model.
        numbers: in all of its tensors.
    """

    name: str
    path: Path
    identity: str
    pairs: Mapping[str, LoraPair]
    numbers: int

    @property
    def key(self) -> str:
        """What its KV is told apart by: another content under the same name is another adapter."""
        return f"{self.name}@{self.identity}"

    def in_layers(self, layers: range) -> dict[str, LoraPair]:
        """The pairs of some of the model's layers."""
        return {module: pair for module, pair in self.pairs.items() if layer_of(module) in layers}


def read_adapters(given: Sequence[str]) -> dict[str, LoraAdapter]:
    """Adapters by name; nothing but headers and configurations is read, and once their content.

    Args:
        given: ``name=directory`` each, as ``lora_modules`` says.

    Raises:
        ConfigError: one cannot be used; names ``lora_modules``, and the adapter.
    """
    return {name: _read(name, path) for name, path in adapter_paths(given).items()}


def adapter_paths(given: Sequence[str]) -> dict[str, Path]:
    """Directories of adapters by name, of which nothing is read.

    Raises:
        ConfigError: names ``lora_modules``.
    """
    paths: dict[str, Path] = {}
    for each in given:
        name, _, path = each.partition("=")
        if not name or not path:
            raise ConfigError(f"lora_modules: {each!r} is no adapter; give name=directory")
        if name in paths:
            raise ConfigError(f"lora_modules: two adapters are called {name}; give each a name of its own")
        paths[name] = Path(path)
    return paths


def adapter_numbers(given: Sequence[str]) -> int:
    """Numbers in all tensors of the adapters that ``lora_modules`` names.

    Raises:
        ConfigError: as for ``read_adapters``.
    """
    return sum(adapter.numbers for adapter in read_adapters(given).values())


def layer_of(module: str) -> int | None:
    """The number of the layer that a module is in; None outside of all layers."""
    match = _OF_A_LAYER.search(module)
    return None if match is None else int(match[1])


def _read(name: str, path: Path) -> LoraAdapter:
    for file in (CONFIG, WEIGHTS):
        if not (path / file).is_file():
            raise ConfigError(
                f"lora_modules: {name} is {path}, which has no {file}; give a directory that PEFT saved, with "
                "safetensors"
            )
    try:
        config = read_json(path / CONFIG)
        header = read_header(path / WEIGHTS)
        weights = file_digests([path / WEIGHTS])
    except ConfigError as error:
        raise ConfigError(f"lora_modules: {name}: {str(error).removeprefix('model: ')}") from error
    _refuse(name, config)
    header.pop("__metadata__", None)
    content = json.dumps([config, weights], sort_keys=True)
    return LoraAdapter(
        name=name,
        path=path,
        identity=hashlib.sha256(content.encode()).hexdigest()[:32],
        pairs=_pairs(name, config, header),
        numbers=sum(math.prod(entry["shape"]) for entry in header.values()),
    )


def _refuse(name: str, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"lora_modules: {name} is a {kind} adapter; only LORA is supported")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise ConfigError(f"lora_modules: {name} has {what}, which is not supported; train it without")
    if config.get("bias", "none") != "none":
        raise ConfigError(
            f"lora_modules: {name} changes biases (bias={config['bias']}), which is not supported; train it without"
        )
    begun = config.get("init_lora_weights")
    if isinstance(begun, str) and _SUBTRACTED.fullmatch(begun):
        raise ConfigError(
            f"lora_modules: {name} belongs to weights from which PEFT has taken what it began with (init_lora_weights="
            f"{begun}), which is not supported; have PEFT convert it to a plain adapter when it saves "
            "(path_initial_model_for_weight_conversion)"
        )


def _pairs(
    name: str, config: Mapping[str, Any], header: Mapping[str, Mapping[str, Any]]
) -> dict[str, LoraPair]:
    sides: dict[str, dict[str, str]] = {}
    for tensor in header:
        match = _FACTOR.fullmatch(tensor.removeprefix(_PREFIX))
        module = tensor.removeprefix(_PREFIX) if match is None else match["module"]
        if (
            match is None
            or layer_of(module) is None
            or module.endswith(_NOT_OF_TOKENS)
            or ".experts." in module
        ):
            raise ConfigError(
                f"lora_modules: {name} changes {module}, which is not supported; adapters may change linear layers "
                f"of attention and dense feed-forwards, but no embedding, no head, no {_NOT_OF_TOKENS}, and no experts"
            )
        sides.setdefault(module, {})[match["side"]] = tensor
    pairs = {}
    for module, found in sides.items():
        if found.keys() != {"A", "B"}:
            raise ConfigError(
                f"lora_modules: {name} has but one of lora_A and lora_B of {module}; save it again"
            )
        a, b = (header[found[side]]["shape"] for side in "AB")
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not a[0]:
            raise ConfigError(
                f"lora_modules: {name} has lora_A of shape {a} and lora_B of shape {b} in {module}, which cannot be "
                "multiplied; save it again"
            )
        pairs[module] = LoraPair(found["A"], found["B"], _scale(name, config, module, a[0]))
    return pairs


def _scale(name: str, config: Mapping[str, Any], module: str, rank: int) -> float:
    """As PEFT computes it."""
    said, alpha = (
        _of_module(name, config, pattern, module, config.get(otherwise))
        for pattern, otherwise in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
    )
    if said != rank or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(
            f"lora_modules: {name} has rank {rank} in {module}, where its configuration says r: {said!r} and "
            f"lora_alpha: {alpha!r}; save it again"
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(name: str, config: Mapping[str, Any], pattern: str, module: str, otherwise: Any) -> Any:
    """Of patterns of how a module's name ends, the first that fits says it, as for PEFT."""
    values = config.get(pattern) or {}
    try:
        return next(
            (value for key, value in values.items() if re.match(rf"(.*\.)?({key})$", module)), otherwise
        )
    except (re.error, AttributeError) as error:
        raise ConfigError(
            f"lora_modules: {name} says {pattern}: {values!r}, which are no patterns of names ({error}); save it again"
        ) from error
