"""How a model's layers are best divided over stages on this machine: ``python -m bench.partition --model DIR``.

An engine counts the parameters that a token is multiplied with. That knows nothing of what attention over a long prefix
costs beside a window, an indexer or a recurrent layer, nor of how fast experts are here. This times one layer of each
kind by itself, in a wave of the size and with the prefixes that you expect, and says which ``partition`` makes the
slowest stage fastest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from wavepp_worker.compute_threads import with_short_spins
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.kv.layer_cache import SHARED_INDEX
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.partition import check_partition, partition_layers
from wavepp_worker.model.stage import Activations, Chunk, ChunkState, StageModel
from wavepp_worker.model.stage_loader import load_stage

from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.tables import plain_table, print_table
from bench.vllm.sides import DTYPES, Dtype

RUNS = 7
WAVE_SECONDS = 600.0
"""That a wave of one layer may take."""
MEASURE_SECONDS = 3600.0


@dataclass(frozen=True)
class Wave:
    """What each layer computes.

    Attributes:
        requests: as many prompts, which end in it.
        tokens: of each.
        behind: tokens of each that are cached.
    """

    requests: int
    tokens: int
    behind: int


def kinds_of(info: ModelInfo) -> dict[int, int]:
    """Of each layer, the first that keeps and multiplies the same, which is timed for all; the last is its own."""
    first: dict[Any, int] = {}
    last = info.num_layers - 1
    return {
        layer: last
        if layer == last
        else first.setdefault((info.caches[layer], info.layer_costs[layer]), layer)
        for layer in range(info.num_layers)
    }


def seconds_of(
    model: Path, layers: Sequence[int], wave: Wave, dtype: Dtype, device: str, threads: int
) -> dict[int, float]:
    """Seconds of a wave in each layer by itself, the least of some; call it in a process of its own."""
    torch.set_num_threads(threads)
    forwards = {layer: _forward(model, layer, wave, dtype, device) for layer in layers}
    least = dict.fromkeys(layers, float("inf"))
    # In turn, as a machine's speed wanders; the first wave of each compiles and touches memory.
    for run in range(RUNS + 1):
        for layer, forward in forwards.items():
            begun = time.perf_counter()
            forward()
            if run:
                least[layer] = min(least[layer], time.perf_counter() - begun)
    return least


def _forward(model: Path, layer: int, wave: Wave, dtype: Dtype, device: str) -> Any:
    stage = load_stage(model, range(layer, layer + 1), getattr(torch, dtype), device, (), "auto")
    block = 32
    each = -(-(wave.behind + wave.tokens) // block)
    kv = stage.make_kv(each * wave.requests, block, wave.requests)
    chunks = [
        Chunk(
            wave.behind,
            wave.tokens,
            torch.arange(number * each, (number + 1) * each),
            wants_logits=True,
            state=ChunkState(number if wave.behind else None, number) if stage.recurrent else None,
        )
        for number in range(wave.requests)
    ]
    return partial(_run, stage, _inputs(model, layer, stage, wave.requests * wave.tokens), chunks, kv)


def _run(stage: StageModel, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: Any) -> None:
    done = stage.forward(inputs, chunks, kv).done
    if done is not None:
        done.wait(WAVE_SECONDS)


def _inputs(model: Path, layer: int, stage: StageModel, tokens: int) -> torch.Tensor | Activations:
    if not layer:
        return torch.randint(stage.vocab_size, (tokens,))
    info, config = read_model_info(model), json.loads((model / "config.json").read_text())
    inputs = {"hidden": torch.randn(tokens, info.hidden_size).to(stage.dtype)}
    if info.caches[layer].kind == SHARED_INDEX:
        inputs["picked"] = torch.zeros(tokens, config["index_topk"], dtype=torch.int32)
    return inputs


def measured(info: ModelInfo, seconds: Mapping[int, float]) -> ModelInfo:
    """The model with seconds in place of parameters; the head's are in the last layer's."""
    kinds = kinds_of(info)
    return replace(
        info,
        layer_costs=tuple(seconds[kinds[layer]] for layer in range(info.num_layers)),
        embedding_cost=0.0,
        head_cost=0.0,
    )


def main(
    model: Annotated[Path, typer.Option(help="A Hugging Face directory.")],
    stages: Annotated[
        list[int] | None, typer.Option(help="Of the pipeline; default: 2, 4 and 8.", min=1)
    ] = None,
    requests: Annotated[int, typer.Option(help="Prompts of a wave.", min=1)] = 1,
    tokens: Annotated[int, typer.Option(help="Of each prompt in a wave.", min=1)] = 512,
    behind: Annotated[int, typer.Option(help="Tokens of each prompt that are cached.", min=0)] = 0,
    dtype: Annotated[str, typer.Option(help=f"Of weights and KV: {' or '.join(DTYPES)}.")] = DTYPES[0],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Of a rank, on a CPU.", min=1)] = 1,
) -> None:
    """Print which partition makes the slowest stage fastest, beside the one that is taken by default."""
    require_known((dtype,), DTYPES)
    console, wave = Console(), Wave(requests, tokens, behind)
    try:
        info = read_model_info(model)
        if not info.caches:
            raise typer.BadParameter("its layers are not computed, but take a time", param_hint="--model")
        for each in stages or ():
            check_partition(info.num_layers, each, None)
        asked = stages or [each for each in (2, 4, 8) if each <= info.num_layers]
        os.environ.update(with_short_spins(dict(os.environ)))
        layers = sorted(set(kinds_of(info).values()))
        arguments = (model, layers, wave, cast(Dtype, dtype), device, threads)
        with (
            console.status(f"one layer of each of {len(layers)} kinds"),
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process,
        ):
            seconds = process.submit(seconds_of, *arguments).result(MEASURE_SECONDS)
    except WaveppError as error:
        raise typer.BadParameter(str(error)) from error
    _print(console, info, measured(info, seconds), seconds, asked)


def _print(
    console: Console,
    counted: ModelInfo,
    timed: ModelInfo,
    seconds: Mapping[int, float],
    stages: Sequence[int],
) -> None:
    kinds = list(kinds_of(counted).values())
    table = plain_table(
        "A wave in one layer",
        str(origin_now()),
        texts=["layer", "keeps"],
        numbers=["layers alike", "ms", "million parameters"],
    )
    for layer, each in seconds.items():
        cost = counted.layer_costs[layer] + (counted.head_cost if layer == counted.num_layers - 1 else 0.0)
        what = f"{layer}{', with the head' if layer == counted.num_layers - 1 else ''}"
        keeps = counted.caches[layer].kind
        table.add_row(what, keeps, str(kinds.count(layer)), f"{1000 * each:.2f}", f"{cost / 1e6:.1f}")
    print_table(console, table)
    answer = plain_table(
        "The slowest stage, ms of a wave",
        "bound: all stages alike",
        texts=["stages", "by default", "measured"],
        numbers=["by default", "measured", "bound", "gain"],
    )
    for count in stages:
        sizes = [[len(each) for each in partition_layers(info, count, None)] for info in (counted, timed)]
        slowest = [_slowest(timed.layer_costs, each) for each in sizes]
        bound = sum(timed.layer_costs) / count
        answer.add_row(
            str(count),
            *(",".join(map(str, each)) for each in sizes),
            *(f"{1000 * each:.2f}" for each in (*slowest, bound)),
            f"{slowest[0] / slowest[1] - 1:.1%}",
        )
    print_table(console, answer)


def _slowest(costs: Sequence[float], sizes: Sequence[int]) -> float:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return max(sum(costs[end - size : end]) for end, size in zip(ends, sizes, strict=True))


if __name__ == "__main__":
    typer.run(main)
