"""Where the time of one forward goes, by kind of operation: the wave that a rank ran, once more."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from wavepp_worker.model.cpu import native_library
from wavepp_worker.model.cpu.fused_decoder_layers import FusedDecoderLayers
from wavepp_worker.model.cpu.native_linear import MOST_FEW
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

RUNS = 15
KINDS = {
    "matmul": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mkldnn", "_grouped_mm"),
    "attention": ("attention", "flash"),
    "layers of few tokens, whole": ("decoder_layer",),
    "gather, KV write": ("index_copy", "index_select", "index", "gather", "embedding", "scatter", "store"),
}
"""By words in an operation's name, the first kind that has one; what else computes is elementwise."""
ELEMENTWISE, HOST = "elementwise", "Python, launch"


class _Recorded:
    """A kernel of the library that the profiler sees; else it would count as Python."""

    def __init__(self, name: str, call: Callable[..., None]) -> None:
        self._name = name
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        with record_function(self._name):
            self._call(*arguments)


@contextmanager
def _kernels_recorded() -> Iterator[None]:
    plain = native_library.kernel
    modules = [each for each in sys.modules.values() if getattr(each, "kernel", None) is plain]

    def recorded(name: str, *arguments: Any, returns: Any = None) -> Any:
        found = plain(name, *arguments, returns=returns)
        # What returns something computes nothing.
        return _Recorded(name, found) if returns is None else found

    for module in modules:
        module.kernel = recorded  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.kernel = plain  # type: ignore[attr-defined]


@contextmanager
def _layers_apart() -> Iterator[None]:
    """Inside, layers go through their modules, for their parts to be seen."""
    joined = FusedDecoderLayers._most_tokens
    FusedDecoderLayers._most_tokens = lambda *_: 0  # type: ignore[method-assign]
    try:
        yield
    finally:
        FusedDecoderLayers._most_tokens = joined  # type: ignore[method-assign]


def kinds(
    model: Path, layers: range, spans: Sequence[tuple[int, int, bool]], dtype: str, block: int, threads: int
) -> dict[str, float]:
    """Milliseconds of one wave by kind; their sum is what the wave takes without a profiler.

    Call it in a process of its own, as a rank is one.

    Args:
        layers: of the stage.
        spans: first token, tokens and whether the prompt ends, of each chunk.
        block: tokens of a block.
    """
    torch.set_num_threads(threads)
    with _kernels_recorded():
        stage = load_stage(model, layers, getattr(torch, dtype), "cpu", (), "auto")
        chunks, blocks = [], 0
        for start, length, last in spans:
            count = -(-(start + length) // block)
            chunks.append(Chunk(start, length, torch.arange(blocks, blocks + count), wants_logits=last))
            blocks += count
        tokens = sum(length for _, length, _ in spans)
        kv = stage.make_kv(blocks, block)
        hidden = json.loads((model / "config.json").read_text())["hidden_size"]
        inputs: Any = torch.randint(stage.vocab_size, (tokens,))
        if layers.start:
            inputs = {"hidden": torch.randn(tokens, hidden).to(stage.dtype)}
        for _ in range(3):
            stage.forward(inputs, chunks, kv)
        seconds = []
        for _ in range(RUNS):
            begun = time.perf_counter()
            stage.forward(inputs, chunks, kv)
            seconds.append(time.perf_counter() - begun)
        # Of few tokens, what lies between the parts takes longer than they.
        shown = _layers_apart() if tokens > MOST_FEW else nullcontext()
        with shown, profile(activities=[ProfilerActivity.CPU]) as measured:
            for _ in range(RUNS):
                stage.forward(inputs, chunks, kv)
    found = dict.fromkeys((*KINDS, ELEMENTWISE), 0.0)
    for event in measured.key_averages():
        if (kind := kind_of(event.key)) is not None:
            found[kind] += event.self_cpu_time_total / RUNS / 1000
    return {**found, HOST: max(0.0, 1000 * median(seconds) - sum(found.values()))}


def kind_of(name: str) -> str | None:
    """The kind of an operation; None of what only calls others, or computes nothing."""
    if name.startswith("wavepp_"):
        words = name.removeprefix("wavepp_")
    elif name.startswith(("aten::", "mkldnn::")):
        words = name.partition("::")[2]
    else:
        return None
    if words in _NO_WORK:
        return None
    return next((kind for kind, marks in KINDS.items() if any(mark in words for mark in marks)), ELEMENTWISE)


_NO_WORK = frozenset(
    (
        "as_strided",
        "empty",
        "empty_strided",
        "expand",
        "reshape",
        "slice",
        "t",
        "to",
        "transpose",
        "unsqueeze",
        "view",
    )
)
"""Time of the host, not of the numbers."""
