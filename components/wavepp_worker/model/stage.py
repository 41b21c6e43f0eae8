"""The interface between the runtime and whatever computes a stage's layers (docs/design.md, "Stage models")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import torch

from wavepp_worker.model.kv.block_regions import BlockRegions

Activations = dict[str, torch.Tensor]
"""What one stage sends to the next: named tensors whose first dimension is the wave's tokens."""


@dataclass(frozen=True)
class ChunkState:
    """Where recurrent layers find a request's state and leave it: blocks of the stage's state memory.

    Attributes:
        before: holds the state after ``start`` tokens; None where nothing comes before the chunk.
        after: receives the state after the chunk; may be ``before``.
        snapshots: by position in ``(start, start + length]``, what receives the state after that many tokens.
    """

    before: int | None
    after: int
    snapshots: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """One request's share of a wave, as a stage sees it.

    Attributes:
        start: position of the chunk's first token; ``start`` tokens of KV are already in the pool.
        length: number of new tokens, at least 1.
        block_table: int64 ``[>= ceil((start + length) / block)]``, physical block of each logical block; with a row for
            each window of the KV memory (``spans``), or one that is the same for all.
        wants_logits: whether the last stage shall return the logits of the chunk's last token.
        state: for stages with recurrent layers; None for others.
        adapter: name of the LoRA adapter that its tokens go through; empty for none.
    """

    start: int
    length: int
    block_table: torch.Tensor
    wants_logits: bool
    state: ChunkState | None = None
    adapter: str = ""


class Completion(Protocol):
    """The end of a wave that was queued on a device."""

    def wait(self, timeout: float) -> None:
        """Return once the device is done with the wave and everything queued before it.

        Raises:
            StepTimeout: it takes longer than ``timeout`` seconds.
        """


@runtime_checkable
class MeasuredCompletion(Completion, Protocol):
    """That of a device which does not tell beforehand when it ends a wave, and says afterwards how long it took.

    What the wave computed is in host memory, and may be read once ``wait`` has returned.
    """

    def over(self) -> bool:
        """Whether the device has computed the wave; at once."""

    def seconds(self) -> float:
        """Device seconds of a wave that is over."""


@dataclass(frozen=True)
class StageOutput:
    """What a stage computed for one wave.

    Attributes:
        activations: activations for the next stage; empty on the last stage.
        logits: float32 ``[number of chunks that want logits, vocabulary]`` in chunk order on the last
            stage, else None.
        done: how to wait for the device where it still computes; None where it does not.
        seconds: device seconds of the wave, where they are known already; a ``MeasuredCompletion`` tells them later.
    """

    activations: Activations
    logits: torch.Tensor | None
    done: Completion | None = None
    seconds: float | None = None


class BlockMemory(Protocol):
    """Equal blocks of device memory that can be copied out and back whole, their content opaque."""

    num_blocks: int
    device: torch.device

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        """Copy blocks out: uint8 ``[n, block_bytes]`` on ``device``, for int64 ``blocks`` ``[n]``."""

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        """Write what ``export_blocks`` returned, on ``device``, to as many different blocks."""


class StateBlocks(BlockMemory, Protocol):
    """One rank's memory for the states of its recurrent layers."""

    def import_state(self, block: int, layers: range, payload: torch.Tensor) -> None:
        """Write what ``export_blocks`` of a rank that holds ``layers`` returned for one block: uint8 ``[bytes]``."""


NOTHING_PASSED: Mapping[int, int] = MappingProxyType({})


class PagedKV(BlockMemory, Protocol):
    """One rank's paged KV memory for its layers."""

    layers: range
    block_size: int
    bytes_per_token: int
    """Bytes that one token takes over all of ``layers``; 0 if none of them keeps anything for each token."""

    spans: tuple[int, ...]
    """How many tokens the layers of each window keep, 0 for all; block tables have a row for each window."""

    def memory(self, window: int) -> BlockMemory:
        """The blocks of the layers of one window."""

    @property
    def states(self) -> StateBlocks | None:
        """The states of recurrent layers; None where there are none."""

    def export_tokens(self, block_table: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """Copy tokens ``[start, end)`` out: a uint8 CPU tensor ``[bytes_per_token * (end - start)]``.

        On a GPU it is there once what is queued on the current stream is done.

        Order: layer by layer; within a layer all keys ``[tokens, heads, dim]``, then all values. Nothing of the first
        tokens of a window, as far as the table says -1.
        """

    def import_tokens(
        self,
        block_table: torch.Tensor,
        start: int,
        end: int,
        layers: range,
        payload: torch.Tensor,
        firsts: Mapping[int, int] = NOTHING_PASSED,
    ) -> None:
        """Write what ``export_tokens`` of a rank that holds ``layers`` returned for the same tokens.

        On a GPU they are there once what is queued on the current stream is done.

        ``firsts``: by the span of a window, before which token the payload has nothing.
        """

    def block_regions(self, layers: range | None = None) -> BlockRegions:
        """Where blocks of tokens of ``layers``, or all, lie: pools layer by layer, keys then values."""

    def regions(self) -> list[tuple[int, int]]:
        """``(address, bytes)`` of every allocation, for registration with a transfer library."""


class StageModel(Protocol):
    """The layers ``[a, b)`` of a model, ready to run waves."""

    layers: range
    num_layers: int
    vocab_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    """Of what is kept of tokens."""
    attends: bool
    """Whether some of the layers keep something for each token, in blocks of the KV memory."""
    recurrent: bool
    """Whether some of the layers have a state, so that chunks have to come with one."""

    def make_kv(
        self,
        num_blocks: int,
        block_size: int,
        num_states: int = 0,
        window_blocks: Callable[[int], int] | None = None,
    ) -> PagedKV:
        """Allocate paged KV memory for ``num_blocks`` blocks of ``block_size`` tokens.

        Args:
            num_states: blocks of the state memory, where layers are recurrent.
            window_blocks: blocks of the layers that have a window of so many tokens; as many as of others if None.
        """

    def forward(self, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: PagedKV) -> StageOutput:
        """Run one wave.

        Args:
            inputs: int64 ``[tokens]`` packed token ids on the first stage, else those of the stage before.
            chunks: the requests' chunks in packing order; their lengths add up to the tokens.
            kv: this stage's KV memory; positions ``[start, start + length)`` are written, earlier ones read.
        """
