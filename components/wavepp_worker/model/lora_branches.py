"""What adapters add to the linear layers of a stage, each for the tokens of its own requests in a wave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.kv.wave_layout import current_wave
from wavepp_worker.model.lora import WEIGHTS, LoraAdapter, layer_of


@dataclass(frozen=True)
class LoraFactors:
    """One adapter's part of one linear layer.

    Attributes:
        a: ``[rank, inputs]``.
        b: ``[outputs, rank]``.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, self.a), self.b) * self.scale


class LoraBranch:
    """A hook after one linear layer.

    Attributes:
        factors: by adapter.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self.factors: dict[str, LoraFactors] = {}

    def __call__(
        self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor | None:
        del linear
        wave = current_wave()
        chosen = [
            (rows, self.factors[name]) for name, rows in wave.adapter_rows.items() if name in self.factors
        ]
        if not chosen:
            return None
        x, out = inputs[0].flatten(0, -2), output.flatten(0, -2)
        if len(x) != wave.tokens:
            raise WaveppError(
                f"{self._module} ran on {len(x)} rows in a wave of {wave.tokens} tokens, so that nobody knows which "
                "are an adapter's"
            )
        for rows, factors in chosen:
            out[rows] += factors(x[rows])
        return out.view(output.shape)


def has_branch(linear: nn.Module) -> bool:
    """Whether adapters add to a linear layer of which ``hooks_are_branches()``."""
    return bool(linear._forward_hooks)


def hooks_are_branches(linear: nn.Module) -> bool:
    """Whether a linear layer does nothing but its product in a wave without adapters."""
    return all(isinstance(hook, LoraBranch) for hook in linear._forward_hooks.values())


def attach_adapters(
    model: nn.Module, layers: range, adapters: Sequence[LoraAdapter]
) -> dict[str, LoraBranch]:
    """Load what the adapters add to ``layers``, and no more, and have the model add it.

    Returns:
        The branches by the name of their linear layer.

    Raises:
        ConfigError: an adapter does not fit the model; names ``lora_modules``.
    """
    modules = dict(model.named_modules())
    # Those of other stages have a place in this one's model.
    there = {layer_of(f"{name}.") for name in modules}
    branches: dict[str, LoraBranch] = {}
    for adapter in adapters:
        if (
            beyond := next((name for name in adapter.pairs if layer_of(name) not in there), None)
        ) is not None:
            raise ConfigError(
                f"lora_modules: {adapter.name} changes {beyond}, a layer that this model does not have; give one "
                "that was trained on this model"
            )
        with safe_open(adapter.path / WEIGHTS, framework="pt") as file:
            for name, pair in adapter.in_layers(layers).items():
                linear = modules.get(name)
                if not isinstance(linear, nn.Linear):
                    raise ConfigError(
                        f"lora_modules: {adapter.name} changes {name}, which is no linear layer of this model that "
                        "runs on all tokens of a wave, as recurrent ones do not; give an adapter of other layers"
                    )
                # Of one whose weights are packed, ``weight`` would be a copy.
                beside = next(linear.parameters())
                a, b = (file.get_tensor(part).to(beside.device, beside.dtype) for part in (pair.a, pair.b))
                if (b.shape[0], a.shape[1]) != (linear.out_features, linear.in_features):
                    raise ConfigError(
                        f"lora_modules: {adapter.name} takes {name} for {a.shape[1]} inputs and {b.shape[0]} outputs, "
                        f"but it has {linear.in_features} and {linear.out_features}; give an adapter that was trained "
                        "on this model"
                    )
                if name not in branches:
                    branches[name] = LoraBranch(name)
                    linear.register_forward_hook(branches[name])
                branches[name].factors[adapter.name] = LoraFactors(a, b, pair.scale)
    return branches


@contextlib.contextmanager
def all_called(model: nn.Module, branches: dict[str, LoraBranch]) -> Iterator[None]:
    """Refuse a model that uses a linear layer's weight without calling the layer, as its branch would not count.

    Raises:
        ConfigError: one with a branch was not called within the block; names ``lora_modules``.
    """
    called: set[str] = set()
    modules = dict(model.named_modules())

    def note(name: str) -> Any:
        return lambda *_: called.add(name)

    hooks = [modules[name].register_forward_pre_hook(note(name)) for name in branches]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for name in branches.keys() - called:
        adapter = next(iter(branches[name].factors))
        raise ConfigError(f"lora_modules: {adapter} changes {name}, which this model does not run as a layer")
