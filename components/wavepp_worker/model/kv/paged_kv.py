"""One rank's KV memory: a pool of token rows per layer, addressed through block tables."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache

from wavepp_worker.errors import HandoffMismatch
from wavepp_worker.model.device.cuda_device import page_locked_bytes, to_device
from wavepp_worker.model.kv.block_regions import BlockRegions
from wavepp_worker.model.kv.fp8_rows import from_rows, to_rows
from wavepp_worker.model.kv.layer_cache import LayerCache
from wavepp_worker.model.kv.state_memory import StateMemory
from wavepp_worker.model.kv.wave_layout import WaveLayout, current_wave
from wavepp_worker.model.kv.window_layout import WindowLayout, token_slots
from wavepp_worker.model.kv.window_memory import WindowMemory, row_bytes
from wavepp_worker.model.recurrent_mixer import learn_state, mix_wave
from wavepp_worker.model.stage import NOTHING_PASSED


class TorchPagedKV:
    """Implements ``PagedKV``. Each layer has a pool ``[blocks * block, heads, dim]`` for each tensor it keeps.

    In FP8 its rows are bytes: see ``fp8_rows``.

    Attributes:
        spans: of the windows, by which block tables have a row each: first 0, where some layer keeps every token.
    """

    def __init__(
        self,
        layers: range,
        caches: Sequence[LayerCache],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_states: int = 0,
        window_blocks: Callable[[int], int] | None = None,
    ) -> None:
        """``window_blocks``: see ``StageModel.make_kv``."""
        self.layers = layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.spans = tuple(sorted({cache.span for cache in caches if cache.per_token}))
        self._blocks = [
            num_blocks if not span or window_blocks is None else window_blocks(span) for span in self.spans
        ]
        self._window_of = [self.spans.index(cache.span) if cache.per_token else 0 for cache in caches]
        # Zeros, as a padded row of a never written block must be finite.
        self._pools = [
            tuple(
                torch.zeros(
                    self._blocks[window] * block_size,
                    *tensor.shape,
                    dtype=_torch(tensor.dtype, dtype),
                    device=device,
                )
                for tensor in cache.tensors
            )
            if cache.per_token
            else ()
            for cache, window in zip(caches, self._window_of, strict=True)
        ]
        self._addresses: dict[range, tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]] = {}
        recurrent = {n: cache for n, cache in zip(layers, caches, strict=True) if not cache.per_token}
        self.states = StateMemory(recurrent, num_states, dtype, device) if recurrent else None
        self.bytes_per_token = sum(row_bytes(pool) for pool in self._flat(layers))

    def window(self, layer: int) -> int:
        """The window of a layer, by its number in the model: where ``spans`` has its span."""
        return self._window_of[layer - self.layers.start]

    def pools(self, layer: int) -> tuple[torch.Tensor, ...]:
        """The pools ``[num_blocks * block, heads, dim]`` of a layer, by its number in the model.

        Keys and values, or of latent attention latents, rotary keys, and the keys of its indexer if it has one.
        """
        return self._pools[layer - self.layers.start]

    def addresses(self, layers: range) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]:
        """Where the first two pools of each layer begin, by its number in the model; they stay there."""
        if layers not in self._addresses:
            pools = [self.pools(layer)[:2] for layer in layers]
            of_kind = ctypes.c_void_p * len(layers)
            keys, values = (of_kind(*(pair[i].data_ptr() for pair in pools)) for i in (0, 1))
            self._addresses[layers] = keys, values
        return self._addresses[layers]

    def memory(self, window: int) -> WindowMemory:
        """The blocks of one window: of all layers that keep the same tokens."""
        pools = [pool for layer in self.layers if self.window(layer) == window for pool in self.pools(layer)]
        return WindowMemory(pools, self._blocks[window], self.device)

    def export_tokens(self, block_table: torch.Tensor, start: int, end: int) -> torch.Tensor:
        if not self.bytes_per_token:
            return torch.empty(0, dtype=torch.uint8)
        rows = [slots[slots >= 0] for slots in self._slots(block_table, start, end)]
        counts = [len(slots) for slots in rows]
        payload = page_locked_bytes(self._bytes(self.layers, counts), self.device)
        where = [to_device(slots, self.device) for slots in rows]
        for layer, pool, part in self._split(self.layers, payload, counts):
            part.copy_(pool.index_select(0, where[self.window(layer)]), non_blocking=True)
        return payload

    def import_tokens(
        self,
        block_table: torch.Tensor,
        start: int,
        end: int,
        layers: range,
        payload: torch.Tensor,
        firsts: Mapping[int, int] = NOTHING_PASSED,
    ) -> None:
        """See ``PagedKV``; ``layers`` may be any contiguous part of this rank's.

        Raises:
            HandoffMismatch: this rank does not hold ``layers``, or the payload has another size than they need.
        """
        if not len(layers) or layers.start < self.layers.start or layers.stop > self.layers.stop:
            raise HandoffMismatch(
                f"the payload is of layers {layers.start} to {layers.stop - 1} but this rank holds "
                f"{self.layers.start} to {self.layers.stop - 1}"
            )
        passed = [min(end, max(start, firsts.get(span, 0))) - start for span in self.spans]
        counts = [end - start - each for each in passed]
        wanted = self._bytes(layers, counts)
        if payload.dtype != torch.uint8 or payload.numel() != wanted:
            given = payload.numel() * payload.element_size()
            raise HandoffMismatch(
                f"{end - start} tokens of layers {layers.start} to {layers.stop - 1} take {wanted} bytes but "
                f"the payload has {given}; both sides must have the same model and dtype"
            )
        slots = [
            to_device(rows[first:], self.device)
            for rows, first in zip(self._slots(block_table, start, end), passed, strict=True)
        ]
        for layer, pool, part in self._split(layers, payload, counts):
            pool.index_copy_(0, slots[self.window(layer)], part.to(self.device, non_blocking=True))

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.bytes_per_token

    def export_blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        return self._whole().export_blocks(blocks)

    def import_blocks(self, blocks: torch.Tensor, payload: torch.Tensor) -> None:
        self._whole().import_blocks(blocks, payload)

    def block_regions(self, layers: range | None = None) -> BlockRegions:
        found = []
        for layer in layers or self.layers:
            window = self.window(layer)
            for pool in self.pools(layer):
                size = self.block_size * row_bytes(pool)
                found.append((pool.data_ptr(), size, window, self._blocks[window]))
        return BlockRegions.of(found)

    def regions(self) -> list[tuple[int, int]]:
        pools = [(pool.data_ptr(), pool.numel() * pool.element_size()) for pool in self._flat(self.layers)]
        return pools if self.states is None else [*pools, self.states.whole()]

    def _flat(self, layers: range) -> Iterator[torch.Tensor]:
        for layer in layers:
            yield from self.pools(layer)

    def _whole(self) -> WindowMemory:
        """All windows' blocks of one number together."""
        return WindowMemory(list(self._flat(self.layers)), self.num_blocks, self.device)

    def _slots(self, block_table: torch.Tensor, start: int, end: int) -> list[torch.Tensor]:
        """By window, on the CPU: the pool rows of tokens ``[start, end)``; less than 0 where it keeps them no more."""
        rows = block_table if block_table.ndim == 2 else block_table.expand(len(self.spans), -1)
        return [token_slots(row, start, end, self.block_size) for row in rows]

    def _bytes(self, layers: range, counts: Sequence[int]) -> int:
        """Of so many tokens in the windows of ``layers``."""
        return sum(
            counts[self.window(layer)] * row_bytes(pool) for layer in layers for pool in self.pools(layer)
        )

    def _split(
        self, layers: range, payload: torch.Tensor, counts: Sequence[int]
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Each pool of ``layers``, with its layer and its part of ``payload`` seen as ``[tokens, heads, dim]``.

        ``counts``: tokens by window.
        """
        at = 0
        for layer in layers:
            tokens = counts[self.window(layer)] if self.pools(layer) else 0
            for pool in self.pools(layer):
                size = tokens * row_bytes(pool)
                yield layer, pool, payload[at : at + size].view(pool.dtype).view(tokens, *pool.shape[1:])
                at += size


class PagedCache(Cache):
    """What transformers' attention modules see as their cache: stores new rows, answers with all rows.

    ``update`` takes keys and values ``[1, heads, tokens, dim]`` and returns those of the wave's requests:
    ``[1, heads, sum of lengths, dim]``, or ``[chunks, heads, longest, dim]`` for a decode wave. For layers whose
    attention reads the pools itself it returns what it took.
    """

    def __init__(self, kv: TorchPagedKV, in_place: frozenset[int] = frozenset()) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._in_place = in_place

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wave = current_wave()
        keys, values, wave.at_hand = self.place(layer_idx, wave)
        _store(keys, key_states, wave)
        _store(values, value_states, wave)
        if layer_idx in self._in_place:
            wave.pools = keys, values
            return key_states, value_states
        wave.pools = None
        return _gathered(keys, key_states, wave), _gathered(values, value_states, wave)

    def place(self, layer: int, wave: WaveLayout) -> tuple[torch.Tensor, torch.Tensor, WindowLayout]:
        """Of a layer with KV: the pools of keys and of values, and where the wave's tokens lie in them."""
        number = self._kv.window(layer)
        keys, values = self._kv.pools(layer)[:2]
        return keys, values, wave.window(number, self._kv.spans[number])

    def mix(self, mixer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """What a recurrent layer's mixer makes of the current wave ``[1, tokens, hidden]``."""
        assert self._kv.states is not None
        return mix_wave(mixer, hidden, current_wave(), self._kv.states)

    def addresses(self, layers: range) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]:
        """Of layers with KV: where their pools of keys and of values begin."""
        return self._kv.addresses(layers)

    def index_keys(self, layer: int) -> torch.Tensor | None:
        """The pool ``[num_blocks * block, 1, dim]`` of what a layer's indexer compares with."""
        return self._kv.pools(layer)[2]


def _torch(name: str | None, dtype: torch.dtype) -> torch.dtype:
    return dtype if name is None else getattr(torch, name)


def _store(pool: torch.Tensor, new: torch.Tensor, wave: WaveLayout) -> None:
    values = new[0].transpose(0, 1)
    pool.index_copy_(0, wave.at_hand.write_slots, to_rows(values) if _is_fp8(pool) else values.to(pool.dtype))


def _gathered(pool: torch.Tensor, new: torch.Tensor, wave: WaveLayout) -> torch.Tensor:
    if wave.at_hand.read_slots is None:
        # What is read later is what is read now, so that how a prompt is cut into chunks changes nothing.
        return from_rows(to_rows(new), new.dtype) if _is_fp8(pool) else new
    rows = pool.index_select(0, wave.at_hand.read_slots)
    if _is_fp8(pool):
        rows = from_rows(rows, new.dtype)
    batch = len(wave.lengths) if wave.decode else 1
    return rows.view(batch, -1, *rows.shape[1:]).transpose(1, 2)


def _is_fp8(pool: torch.Tensor) -> bool:
    return pool.dtype is torch.uint8


class ShapeRecorder(Cache):
    """Stands in for the cache before there is one, to learn what each layer keeps of a token.

    Attributes:
        shapes: by layer, ``(heads, dim)`` of each tensor.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, list[tuple[int, ...]]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.shapes[layer_idx] = [(states.shape[1], states.shape[3]) for states in (key_states, value_states)]
        current_wave().answered = key_states, value_states
        return key_states, value_states

    def mix(self, mixer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        out, self.shapes[int(mixer.layer_idx)] = learn_state(mixer, hidden)  # type: ignore[arg-type]
        return out

    def index_keys(self, layer: int) -> torch.Tensor | None:
        """There is no pool; who asks says by ``update_indexer`` what it would keep there."""
        del layer
        return None

    def update_indexer(self, keys: torch.Tensor, layer_idx: int) -> torch.Tensor:
        self.shapes[layer_idx].append((1, keys.shape[-1]))
        return keys
