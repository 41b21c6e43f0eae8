"""Loading one stage of transformers' layers: only its own are read from the checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.utils import logging as transformers_logging

from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.architecture import Outline, model_caches, model_class, outline, read_config
from wavepp_worker.model.attention.heads import Heads
from wavepp_worker.model.attention.indexed_attention import PagedIndexer
from wavepp_worker.model.attention.interface import ATTENTION
from wavepp_worker.model.attention.latent_absorption import LatentSizes, latent_sizes
from wavepp_worker.model.cpu.fused_decoder_layers import fuse_decoder_layers
from wavepp_worker.model.cpu.fused_modules import fuse_attention, fuse_elementwise
from wavepp_worker.model.cpu.native_attention import reads_in_place
from wavepp_worker.model.cpu.native_linear import make_native
from wavepp_worker.model.files.checkpoint import read_json, require_model_dir
from wavepp_worker.model.files.quantisation import Scheme, scheme_of
from wavepp_worker.model.files.stored_tensors import expanded_tensors
from wavepp_worker.model.gpu.flashinfer_attention import FlashInfer, find_flashinfer
from wavepp_worker.model.gpu.flashinfer_rotary import find_rotary
from wavepp_worker.model.gpu.fused_modules import fuse_on_gpu, is_gpu
from wavepp_worker.model.kv.layer_cache import INDEXED, LATENT, SHARED_INDEX, LayerCache, in_fp8
from wavepp_worker.model.kv.paged_kv import ShapeRecorder
from wavepp_worker.model.kv.wave_layout import WaveLayout, running
from wavepp_worker.model.last_layer import can_be_trimmed, trim
from wavepp_worker.model.layer_calls import layers_noted
from wavepp_worker.model.lora import LoraAdapter
from wavepp_worker.model.lora_branches import all_called, attach_adapters
from wavepp_worker.model.recurrent_mixer import RecurrentMixer, mixer_name
from wavepp_worker.model.torch_stage import ElsewhereLayer, TorchStage, run_layers

logger = logging.getLogger(__name__)
_NOT_ALL_AT_ONCE = "HF_DEACTIVATE_ASYNC_LOAD"


def load_torch_stage(
    model_dir: Path,
    layers: range,
    dtype: torch.dtype,
    device: str,
    adapters: Sequence[LoraAdapter] = (),
    kv_dtype: str = "auto",
) -> TorchStage:
    """Load ``layers`` of a Hugging Face directory; see ``load_stage``.

    Where ``dtype`` is the checkpoint's and the device is the CPU, weights are views of the files, shared by
    all processes of the host and paged in as they are used, but those that are packed (``make_native``). Quantised
    weights are expanded to ``dtype`` as they are read, which a line in the log says with what it costs.

    Raises:
        ConfigError: the directory, its architecture or the device cannot be used; the message names the key.
    """
    require_model_dir(model_dir)
    config = read_config(model_dir)
    parts = outline(config)
    if not 0 <= layers.start < layers.stop <= len(parts.layers) or layers.step != 1:
        raise ConfigError(f"partition: layers {layers} do not exist; the model has {len(parts.layers)}")
    base = model_class(config)

    class Stage(base):  # type: ignore[valid-type,misc]
        # Whatever other stages hold is in the files too.
        _keys_to_ignore_on_load_unexpected = (r".*",)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _prune(self, layers, parts)

    Stage.__name__ = base.__name__
    scheme = scheme_of(read_json(model_dir / "config.json"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_progress_bar())
        source: dict[str, Any] = {"pretrained_model_name_or_path": model_dir}
        if scheme is not None:
            # The loader shall see plain weights, which it reads one at a time: expanded, they are no views of files.
            config.quantization_config = None
            stack.enter_context(_one_by_one())
            tensors = expanded_tensors(model_dir, scheme, stack)
            source = {"pretrained_model_name_or_path": None, "state_dict": tensors}
        model, report = Stage.from_pretrained(
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION,
            output_loading_info=True,
            # They are in the report, by their names.
            ignore_mismatched_sizes=True,
            **source,
        )
    lacking = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    if lacking:
        raise ConfigError(
            f"model: {model_dir} lacks or misshapes {len(lacking)} weights, such as {lacking[0]}"
        )
    if scheme is not None:
        _say_cost(scheme, layers, dtype, sum(tensor.bytes_read for tensor in tensors.values()), model)
    model = _to_device(model.eval().requires_grad_(False), device)
    make_native(model)
    caches, decoder = model_caches(config), model.base_model
    for i in layers:
        if caches[i].kind == INDEXED:
            attention = decoder.layers[i].self_attn
            attention.indexer = PagedIndexer(attention.indexer)
        elif (mixer := mixer_name(decoder.layers[i])) is not None:
            layer = decoder.layers[i]
            setattr(layer, mixer, RecurrentMixer(getattr(layer, mixer)))
    branches = attach_adapters(model, layers, adapters)
    last = decoder.layers[-1]
    with all_called(model, branches), layers_noted(decoder.layers, getattr(decoder, parts.norm)) as calls:
        flashinfer = None if kv_dtype == "fp8" else find_flashinfer(model.device, model.dtype)
        in_place, absorbing, capped = _check_layers(model, layers, parts, caches, flashinfer)
    trimmed = can_be_trimmed(decoder.layers, calls)
    if flashinfer is not None and not flashinfer.taken:
        flashinfer = None
    fuse_elementwise(model)
    if is_gpu(model.device):
        windows = {i: parts.windows[i] for i in layers if caches[i].per_token}
        rotary = find_rotary(model.device, model.dtype)
        changed = fuse_on_gpu(model, windows, rotary)
        logger.info("%s%s", changed, "" if rotary else ": FlashInfer is not installed, or not for this dtype")
    if trimmed:
        trim(last)
    if kv_dtype == "fp8":
        # No kernel reads such rows in place.
        return TorchStage(model, layers, in_fp8(caches), capped=capped, trims=trimmed)
    if flashinfer is None:
        fused: dict[int, int | None] = {}
        for i in sorted(in_place):
            attention, window = getattr(decoder.layers[i], "self_attn", None), parts.windows[i]
            trims = trimmed and decoder.layers[i] is last
            if attention is not None and fuse_attention(attention, window, trimmed=trims):
                fused[i] = window
        fuse_decoder_layers(decoder.layers, fused, calls, trims=trimmed)
    return TorchStage(model, layers, caches, in_place, flashinfer, absorbing, capped=capped, trims=trimmed)


def _say_cost(scheme: Scheme, layers: range, dtype: torch.dtype, stored: int, model: Any) -> None:
    kept = sum(weight.nbytes for weight in model.parameters())
    logger.warning(
        "layers %d to %d are stored as %s in %.2f GiB and kept as %s in %.2f GiB: no kernel here computes with weights "
        "as they are stored",
        layers.start,
        layers.stop - 1,
        scheme.method,
        stored / 2**30,
        str(dtype).removeprefix("torch."),
        kept / 2**30,
    )


def _prune(model: Any, layers: range, parts: Outline) -> None:
    """Drop, before any weight is read, what other stages run; layers keep their numbers."""
    decoder, last = model.base_model, layers.stop == len(parts.layers)
    tied = model.config.tie_word_embeddings
    for i in range(len(parts.layers)):
        if i not in layers:
            decoder.layers[i] = ElsewhereLayer(enters=i == layers.start - 1, leaves=i == layers.stop)
    if layers.start > 0 and not (last and tied):
        model.set_input_embeddings(nn.Identity())
    if not last:
        setattr(decoder, parts.norm, nn.Identity())
        model.set_output_embeddings(nn.Identity())
        model.all_tied_weights_keys = {}


def _to_device(model: Any, device: str) -> Any:
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device: {device} cannot be used ({str(error).splitlines()[0]}); use cpu, or cuda where there "
            "is a GPU with room for the stage"
        ) from None


def _check_layers(
    model: Any,
    layers: range,
    parts: Outline,
    caches: tuple[LayerCache, ...],
    flashinfer: FlashInfer | None,
) -> tuple[frozenset[int], dict[int, LatentSizes], frozenset[int]]:
    """Run two tokens: shows that each layer keeps what its kind does, and that attention goes through ours alone.

    Args:
        flashinfer: what may read pools on a GPU.

    Returns:
        Which layers read the KV pools themselves, which can read latents there, and whose attention does more to scores
        than to mask them.
    """
    device = model.device
    wave = WaveLayout(
        starts=[0],
        lengths=[2],
        decode=False,
        positions=torch.arange(2, device=device)[None],
        tables=[],
        block_size=1,
        device=device,
    )
    first = layers.start == 0
    hidden = model.config.hidden_size
    data = torch.zeros(2, dtype=torch.int64) if first else torch.zeros(2, hidden, dtype=model.dtype)
    recorder = ShapeRecorder()
    expected = {i: parts.windows[i] for i in layers if caches[i].per_token}
    name = model.config.model_type
    if caches[layers.start].kind == SHARED_INDEX:
        wave.entering_picked = torch.zeros(1, 2, 1, dtype=torch.int32, device=device)
    try:
        with torch.inference_mode(), running(wave):
            output = run_layers(model.base_model, data.to(device), wave, recorder)
    except WaveppError as error:
        raise ConfigError(f"model: the architecture {name} is not supported: {error}") from None
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # Sizes that do not go together, or that no kernel takes.
        raise ConfigError(
            f"model: the architecture {name} cannot be computed in {str(model.dtype).removeprefix('torch.')} with "
            f"the sizes that config.json says ({str(error).splitlines()[0]}): they do not go together, or want another "
            "dtype"
        ) from error
    result = output.last_hidden_state if layers.stop == len(parts.layers) else wave.leaving
    if result is None or tuple(result.shape) != (1, 2, hidden):
        raise ConfigError(
            f"model: the architecture {name} is not supported: its layers pass on more than one tensor"
        )
    if wave.windows != expected or recorder.shapes.keys() != set(layers):
        raise ConfigError(
            f"model: the architecture {name} is not supported: its layers attend with windows {wave.windows} "
            f"where the configuration says {expected}"
        )
    for i in layers:
        declared, kept = [tensor.shape for tensor in caches[i].tensors], recorder.shapes[i]
        if kept != declared:
            raise ConfigError(
                f"model: the architecture {name} is not supported: layer {i} keeps {kept}, where layers of its kind, "
                f"{caches[i].kind}, keep {declared}"
            )
    in_place = {i for i in layers if caches[i].kind in (INDEXED, SHARED_INDEX)}
    for i, queries in wave.as_answered.items():
        keys, values = recorder.shapes[i]
        if flashinfer is None:
            reads = reads_in_place(model.dtype, device, keys[1], values[1])
        else:
            reads = keys == values and flashinfer.takes(Heads(queries, *keys), parts.windows[i])
        if reads:
            in_place.add(i)
    absorbing: dict[int, LatentSizes] = {}
    if flashinfer is not None and flashinfer.latent is not None:
        for i in sorted(wave.only_masked):
            sizes = latent_sizes(getattr(model.base_model.layers[i], "self_attn", None))
            if caches[i].kind == LATENT and sizes is not None and flashinfer.latent.takes(sizes):
                absorbing[i] = sizes
    return frozenset(in_place), absorbing, frozenset(expected.keys() - wave.only_masked)


@contextlib.contextmanager
def _one_by_one() -> Iterator[None]:
    """Have transformers convert each tensor as it is read, rather than read all of them first."""
    before = os.environ.get(_NOT_ALL_AT_ONCE)
    os.environ[_NOT_ALL_AT_ONCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NOT_ALL_AT_ONCE]
        else:
            os.environ[_NOT_ALL_AT_ONCE] = before


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
