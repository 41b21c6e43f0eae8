"""A pipeline stage made of transformers' own layers over paged KV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from wavepp_worker.errors import WaveppError
from wavepp_worker.model.attention.latent_absorption import LatentSizes, absorbing_pays
from wavepp_worker.model.device.cuda_device import CudaDevice
from wavepp_worker.model.gpu.flashinfer_attention import FlashInfer
from wavepp_worker.model.gpu.packed_attention import AttentionKinds
from wavepp_worker.model.kv.fp8_rows import NUMBERS
from wavepp_worker.model.kv.layer_cache import INDEXED, SHARED_INDEX, LayerCache
from wavepp_worker.model.kv.paged_kv import PagedCache, TorchPagedKV
from wavepp_worker.model.kv.wave_layout import WaveLayout, current_wave, lay_out_wave, running
from wavepp_worker.model.stage import Activations, Chunk, PagedKV, StageOutput

HIDDEN = "hidden"
PICKED = "picked"
_LOGITS = "logits"


_NONE = object()


class ElsewhereLayer(nn.Module):
    """Holds the place of a layer that another stage runs.

    The last one before the stage's own layers hands in what the previous stage sent, and the first one after
    them takes what they computed. So what a model does before or after all of its layers does not count.
    """

    def __init__(self, enters: bool, leaves: bool) -> None:
        super().__init__()
        self._enters = enters
        self._leaves = leaves

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, prev_topk_indices: Any = _NONE, **kwargs: Any
    ) -> Any:
        """Layers that hand on what they picked take ``prev_topk_indices``, and answer with it as well."""
        wave, picks = current_wave(), prev_topk_indices is not _NONE
        if self._leaves:
            wave.leaving = hidden_states
            wave.leaving_picked = prev_topk_indices if picks else None
        if self._enters and wave.entering is not None:
            hidden_states, prev_topk_indices = wave.entering, wave.entering_picked
        return (hidden_states, prev_topk_indices) if picks else hidden_states


class TorchStage:
    """Implements ``StageModel`` for the layers ``[a, b)``. Not thread-safe: one wave at a time.

    On a GPU waves are queued, and what they compute for others is copied to host memory (``CudaDevice``), but for
    activations that go to the next stage's device as they are. There no step of ``forward`` may need a number that is
    on the device.

    The activations between stages are ``{"hidden": [tokens, hidden size]}`` in the stage's dtype; where the next
    stage's first layer reads the tokens that an indexer before it has picked, also ``"picked": [tokens, most]``, int32.

    Attributes:
        flashinfer: see ``__init__``.
        activations_stay: whether, of a stage on a GPU, they are read there.
    """

    def __init__(
        self,
        model: Any,
        layers: range,
        caches: tuple[LayerCache, ...],
        in_place: frozenset[int] = frozenset(),
        flashinfer: FlashInfer | None = None,
        absorbing: Mapping[int, LatentSizes] = MappingProxyType({}),
        *,
        capped: frozenset[int] = frozenset(),
        trims: bool = False,
    ) -> None:
        """Put it together.

        Args:
            caches: of all layers of the whole model.
            in_place: layers whose attention reads the KV pools itself.
            flashinfer: what reads them on a GPU; None where nothing does.
            absorbing: layers of which it can read latents, where that pays.
            capped: layers whose attention does more to scores than to mask them.
            trims: its last layer is the model's, and computes for wanted tokens only.
        """
        self.layers = layers
        self.num_layers = len(caches)
        self.vocab_size: int = model.config.vocab_size
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.kv_dtype = (
            NUMBERS
            if any(each.dtype for cache in caches for each in cache.tensors if cache.per_token)
            else self.dtype
        )
        self.activations_stay = False
        self._gpu = CudaDevice(self.device) if self.device.type == "cuda" else None
        self._model = model
        self._caches = [caches[i] for i in layers]
        self._in_place = in_place
        self.flashinfer = flashinfer
        self._absorbing = dict(absorbing)
        attending = {i for i, cache in zip(layers, self._caches, strict=True) if cache.per_token}
        self._attending = frozenset(attending)
        self._trims = trims
        self._capped = capped & self._attending
        self.attends = any(cache.per_token for cache in self._caches)
        self.recurrent = not all(cache.per_token for cache in self._caches)
        kinds = [cache.kind for cache in caches]
        self._takes_picked = kinds[layers.start] == SHARED_INDEX
        self._hands_picked = layers.stop < len(kinds) and kinds[layers.stop] == SHARED_INDEX

    @property
    def activation_bytes(self) -> int:
        """Of a token between stages, without what an indexer has picked."""
        return int(self._model.config.hidden_size) * self.dtype.itemsize

    @property
    def attention_kinds(self) -> AttentionKinds:
        """In which way its layers attend on a GPU."""
        picked = {
            i
            for i, cache in zip(self.layers, self._caches, strict=True)
            if cache.kind in (INDEXED, SHARED_INDEX)
        }
        read = self._in_place | self._absorbing.keys() if self.flashinfer is not None else frozenset()
        in_place = (read & self._attending) - picked
        rest = len(self._attending - in_place - picked - self._capped)
        return AttentionKinds(len(in_place), rest, len(self._capped), len(picked))

    def make_kv(
        self,
        num_blocks: int,
        block_size: int,
        num_states: int = 0,
        window_blocks: Callable[[int], int] | None = None,
    ) -> TorchPagedKV:
        return TorchPagedKV(
            self.layers,
            self._caches,
            num_blocks,
            block_size,
            self.dtype,
            self.device,
            num_states,
            window_blocks,
        )

    def forward(self, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: PagedKV) -> StageOutput:
        """See ``StageModel``.

        Raises:
            WaveppError: the inputs do not fit the chunks or this stage's place, or the KV is another stage's.
        """
        if not isinstance(kv, TorchPagedKV) or kv.layers != self.layers:
            raise WaveppError(f"the stage of layers {self.layers} was given the KV memory of {kv.layers}")
        absorbing = self._absorbing_in(chunks)
        in_place = self._in_place | absorbing
        all_in_place = self.flashinfer is not None and in_place >= self._attending
        wave = lay_out_wave(chunks, kv.block_size, self.device, kv.spans, in_place=all_in_place)
        wave.flashinfer, wave.absorbing = self.flashinfer, absorbing
        data = self._checked(inputs, wave)
        if self._takes_picked:
            wave.entering_picked = self._brought(_picked(inputs, wave))
        begun = None if self._gpu is None else self._gpu.begin()
        with torch.inference_mode(), running(wave):
            if self.layers.stop < self.num_layers:
                computed = self._activations(data, wave, kv)
            else:
                computed = {_LOGITS: self._logits(data, wave, kv)}
        done = None
        if self._gpu is not None and begun is not None:
            computed, done = self._gpu.end(begun, computed, self.activations_stay and _LOGITS not in computed)
        logits = computed.pop(_LOGITS, None)
        return StageOutput(computed, logits, done)

    def _absorbing_in(self, chunks: list[Chunk]) -> frozenset[int]:
        """The layers that read latents of a wave."""
        starts, lengths = [chunk.start for chunk in chunks], [chunk.length for chunk in chunks]
        pays = {sizes: absorbing_pays(starts, lengths, sizes) for sizes in set(self._absorbing.values())}
        return frozenset(layer for layer, sizes in self._absorbing.items() if pays[sizes])

    def _activations(self, data: torch.Tensor, wave: WaveLayout, kv: TorchPagedKV) -> Activations:
        run_layers(
            self._model.base_model, data, wave, PagedCache(kv, self._in_place | frozenset(wave.absorbing))
        )
        passed_on = {HIDDEN: wave.leaving}
        if self._hands_picked:
            passed_on[PICKED] = wave.leaving_picked
        activations = {name: tensor[0] for name, tensor in passed_on.items() if tensor is not None}
        if len(activations) < len(passed_on):
            raise WaveppError(f"layers {self.layers} passed no activations on")
        return activations

    def _logits(self, data: torch.Tensor, wave: WaveLayout, kv: TorchPagedKV) -> torch.Tensor:
        if not len(wave.wanted):
            run_layers(
                self._model.base_model, data, wave, PagedCache(kv, self._in_place | frozenset(wave.absorbing))
            )
            return torch.empty(0, self.vocab_size, dtype=torch.float32, device=self.device)
        cache = PagedCache(kv, self._in_place | frozenset(wave.absorbing))
        # 0 keeps all.
        keep = 0 if self._trims and wave.trimmed else wave.wanted
        output = run_layers(self._model, data, wave, cache, logits_to_keep=keep)
        return output.logits[0].float()

    def _checked(self, inputs: torch.Tensor | Activations, wave: WaveLayout) -> torch.Tensor:
        first = self.layers.start == 0
        if isinstance(inputs, torch.Tensor) != first:
            raise WaveppError(
                f"the stage of layers {self.layers} takes {'token ids' if first else 'activations'}, not "
                f"{'activations' if first else 'token ids'}"
            )
        data = inputs if isinstance(inputs, torch.Tensor) else inputs[HIDDEN]
        if len(data) != wave.tokens:
            raise WaveppError(f"the wave's chunks add up to {wave.tokens} tokens but {len(data)} came in")
        # The kernels believe it.
        if not first and (
            data.dtype is not self.dtype or data.shape[1:] != (self._model.config.hidden_size,)
        ):
            raise WaveppError(
                f"the stage of layers {self.layers} takes activations of {self._model.config.hidden_size} numbers in "
                f"{self.dtype}, not {tuple(data.shape[1:])} in {data.dtype}; all ranks must have one model and dtype"
            )
        return self._brought(data)

    def _brought(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device) if self._gpu is None else self._gpu.bring(tensor)


def _picked(inputs: torch.Tensor | Activations, wave: WaveLayout) -> torch.Tensor:
    if isinstance(inputs, torch.Tensor) or PICKED not in inputs or len(inputs[PICKED]) != wave.tokens:
        raise WaveppError(
            "the stage before did not say which tokens its indexer picked for the first layer here"
        )
    return inputs[PICKED][None]


def run_layers(module: Any, data: torch.Tensor, wave: WaveLayout, cache: Any, **kwargs: Any) -> Any:
    """Call a transformers model or decoder on token ids ``[tokens]`` or activations ``[tokens, hidden]``."""
    packed = data[None]
    if data.is_floating_point():
        wave.entering = packed
        kwargs["inputs_embeds"] = packed
    else:
        kwargs["input_ids"] = packed
    if getattr(module.config, "index_topk", None) is not None:
        # Layers with an indexer want a mask; ours knows what each request's tokens may see.
        anything = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=data.device)
        kwargs["attention_mask"] = {"indexed_attention": anything}
    return module(position_ids=wave.positions, past_key_values=cache, use_cache=True, **kwargs)
