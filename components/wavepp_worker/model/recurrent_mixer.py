"""Recurrent layers of transformers in packed waves: each request goes through with a state of its own.

transformers' modules keep one state per row of a batch, and cannot tell requests apart that are packed into one row:
one's state would run on into the next. So the mixer alone, which is the part of a layer that has a state, sees them
one by one; all else of the layer stays packed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.cache_utils import Cache

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.kv.state_memory import StateMemory
from wavepp_worker.model.kv.wave_layout import WaveLayout
from wavepp_worker.model.stage import ChunkState

MIXERS = ("Qwen3NextGatedDeltaNet", "KimiLinearDeltaAttention")
"""Classes of transformers whose state is one of a convolution and one matrix per head: gated DeltaNet, and KDA."""

_IN_PIECES = ("KimiLinearDeltaAttention",)
"""Those whose code for CPUs takes 256 bytes for each token, head and dim of it at once: of 512 tokens of Kimi Linear
half a GiB. It computes in pieces of ``_PIECE_TOKENS`` anyway, and is given one at a time."""
_PIECE_TOKENS = 64


def mixer_name(layer: nn.Module) -> str | None:
    """The attribute that holds a layer's recurrent mixer; None if it has none of a known kind."""
    return next((name for name, part in layer.named_children() if type(part).__name__ in MIXERS), None)


class MixerState(Cache):
    """What a mixer sees as its cache: the state of the requests at hand, None before their first token.

    Attributes:
        recurrent: ``[requests, ...]``.
        conv: ``[requests, channels, kernel size - 1]``.
    """

    def __init__(self, recurrent: torch.Tensor | None = None, conv: torch.Tensor | None = None) -> None:
        super().__init__(layers=[])
        self.recurrent = recurrent
        self.conv = conv

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.recurrent

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        """Answers the latest inputs followed by the new ones ``[requests, channels, tokens]``."""
        kept = kwargs["conv_kernel_size"] - 1
        seen = conv_states if self.conv is None else torch.cat([self.conv, conv_states], -1)
        short = max(0, kept - seen.shape[-1])
        # Before its first token a convolution sees zeros.
        self.conv = F.pad(seen, (short, 0))[..., seen.shape[-1] + short - kept :]
        return seen

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        self.recurrent = recurrent_states
        return recurrent_states

    def both(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The state after at least one token, in the order in which it is kept."""
        assert self.recurrent is not None
        assert self.conv is not None
        return self.recurrent, self.conv


class RecurrentMixer(nn.Module):
    """Stands in a layer for its mixer, and has the stage's cache run it (``mix``)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: torch.Tensor, cache_params: Any, **_: Any) -> torch.Tensor:
        return cache_params.mix(self.inner, hidden_states)


def mix_wave(mixer: nn.Module, hidden: torch.Tensor, wave: WaveLayout, memory: StateMemory) -> torch.Tensor:
    """Run a mixer over a packed wave ``[1, tokens, hidden]``; states are read from and left in ``memory``.

    Raises:
        WaveppError: a chunk does not say where its state is.
    """
    layer = int(mixer.layer_idx)  # type: ignore[arg-type]
    states = [state for state in wave.states if state is not None]
    if len(states) < len(wave.lengths):
        raise WaveppError(f"layer {layer} is recurrent, but a chunk of the wave comes without a state")
    if wave.decode and all(state.before is not None for state in states):
        return _mix_batch(mixer, hidden, layer, states, wave.starts, memory)
    parts, at = [], 0
    for state, start, length in zip(states, wave.starts, wave.lengths, strict=True):
        parts.append(_mix_chunk(mixer, hidden[:, at : at + length], layer, state, start, memory))
        at += length
    return torch.cat(parts, 1)


def _mix_chunk(
    mixer: nn.Module, hidden: torch.Tensor, layer: int, state: ChunkState, start: int, memory: StateMemory
) -> torch.Tensor:
    """One request's chunk, in parts where a snapshot lies within."""
    end = start + hidden.shape[1]
    running = MixerState() if state.before is None else MixerState(*memory.load(layer, [state.before]))
    parts = []
    cuts = {start, end, *(at for at in state.snapshots if at < end)}
    if type(mixer).__name__ in _IN_PIECES and hidden.device.type == "cpu":
        cuts.update(range(start, end, _PIECE_TOKENS))
    for first, last in pairwise(sorted(cuts)):
        parts.append(mixer(hidden[:, first - start : last - start], cache_params=running))
        if last in state.snapshots:
            memory.store(layer, [state.snapshots[last]], running.both())
    memory.store(layer, [state.after], running.both())
    return torch.cat(parts, 1)


def _mix_batch(
    mixer: nn.Module,
    hidden: torch.Tensor,
    layer: int,
    states: list[ChunkState],
    starts: list[int],
    memory: StateMemory,
) -> torch.Tensor:
    """One token of each request: as a batch, as nothing is packed then."""
    running = MixerState(*memory.load(layer, [state.before for state in states if state.before is not None]))
    out = mixer(hidden.transpose(0, 1), cache_params=running)
    memory.store(layer, [state.after for state in states], running.both())
    for row, (state, start) in enumerate(zip(states, starts, strict=True)):
        if start + 1 in state.snapshots:
            taken = [tensor[row : row + 1] for tensor in running.both()]
            memory.store(layer, [state.snapshots[start + 1]], taken)
    return out.transpose(0, 1)


def learn_state(mixer: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
    """Run a mixer on ``[1, tokens, hidden]`` of one request to see of which shapes its state is.

    Raises:
        WaveppError: the state is not kept in float32.
    """
    running = MixerState()
    out = mixer(hidden, cache_params=running)
    recurrent, conv = running.both()
    if recurrent.dtype != torch.float32:
        raise WaveppError(f"{type(mixer).__name__} keeps its state as {recurrent.dtype}, not as float32")
    return out, [tuple(recurrent.shape[1:]), tuple(conv.shape[1:])]
