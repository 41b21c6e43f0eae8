"""What the workers of a graph must agree on, as they serve one model together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.dtype_choice import dtype_name
from wavepp_worker.serve.graph import COMMON, Service
from wavepp_worker.serve.model_choice import ModelChoice


@dataclass(frozen=True)
class Serving:
    """What one service would serve.

    Attributes:
        service: its name.
        name: of the model, for clients.
        dtype: it computes in; None if it does not say.
        kv_dtype: it keeps KV in, as it was asked for; None if it does not say.
        adapters: names of its LoRA adapters; None if it takes none.
    """

    service: str
    name: str
    dtype: str | None
    kv_dtype: str | None
    adapters: frozenset[str] | None


def serving(service: Service, flags: Mapping[str, Any], choice: ModelChoice) -> Serving | None:
    """What a service with these flags, which it takes, would serve; None if it serves no model."""
    if choice.name is None or service.kind != "worker":
        return None
    dtype = None
    if "dtype" in service.common:
        asked, device = flags.get("dtype") or "auto", flags.get("device") or "cpu"
        dtype = dtype_name(str(asked), choice.shape.dtype, str(device))
    # Flags as they are written: what a parser makes of them was checked before.
    kv_dtype = str(flags.get("kv_dtype") or "auto") if "kv_dtype" in service.common else None
    adapters = None
    if "lora_modules" in service.common:
        adapters = adapter_names(flags.get("lora_modules"))
    return Serving(service.name, choice.name, dtype, kv_dtype, adapters)


def check_agreement(all_serving: Sequence[Serving]) -> None:
    """Refuse workers of which some could not take over from others.

    Raises:
        ConfigError: two differ; names the key of the later one.
    """
    for first, other in pairwise(all_serving):
        if first.name != other.name:
            raise ConfigError(
                f"{other.service}.served_model_name: {other.service} would serve {other.name!r} and {first.service} "
                f"{first.name!r}, but a graph serves one model under one name; set {COMMON}.served_model_name"
            )
        if None not in (first.dtype, other.dtype) and first.dtype != other.dtype:
            raise ConfigError(
                f"{other.service}.dtype: {other.service} would compute in {other.dtype} and {first.service} in "
                f"{first.dtype}, but KV is taken over byte by byte; set {COMMON}.dtype"
            )
        if None not in (first.kv_dtype, other.kv_dtype) and first.kv_dtype != other.kv_dtype:
            raise ConfigError(
                f"{other.service}.kv_dtype: {other.service} would keep KV as {other.kv_dtype} and {first.service} as "
                f"{first.kv_dtype}, but it is taken over byte by byte; set {COMMON}.kv_dtype"
            )
        if None not in (first.adapters, other.adapters) and first.adapters != other.adapters:
            raise ConfigError(
                f"{other.service}.lora_modules: {other.service} would have {_named(other.adapters)} and "
                f"{first.service} {_named(first.adapters)}, but a request goes through one adapter in both; set "
                f"{COMMON}.lora_modules"
            )


def adapter_names(modules: Any) -> frozenset[str]:
    """Names in ``lora_modules``, however it is written."""
    given = modules.strip("[]() ").split(",") if isinstance(modules, str) else modules or ()
    return frozenset(name for each in given if (name := str(each).partition("=")[0].strip()))


def _named(adapters: frozenset[str] | None) -> str:
    return f"adapters {', '.join(sorted(adapters))}" if adapters else "no adapters"
