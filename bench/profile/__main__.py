"""Where the time of a wave goes: ``python -m bench.profile``.

Serves one cell of ``bench.vllm`` and says for every stage what its LOOP thread did, what a forward of its median wave
is made of, and which threads took CPU time; beside it, what a core of this machine can do.
"""

from __future__ import annotations

import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer
from rich.console import Console
from wavepp_worker import EngineConfig
from wavepp_worker.model.model_info import read_model_info
from wavepp_worker.model.partition import partition_layers

from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.small_model import tiny_llama
from bench.common.tables import plain_table, print_table
from bench.profile.kinds import kinds
from bench.profile.limits import limits
from bench.profile.ranks import LOOP_PARTS, RankTime, Served, serve
from bench.vllm.cells import traffic_of
from bench.vllm.sides import DTYPES, Dtype

KINDS_SECONDS = 300.0
"""That the forwards of one stage may take."""


def main(
    cell: Annotated[str, typer.Option(help="As bench.vllm writes them.")] = "cold:32:128:2000",
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face directory; default: bench.vllm's tiny Llama.")
    ] = None,
    stages: Annotated[int, typer.Option(help="Of the pipeline.", min=1)] = 2,
    wave_tokens: Annotated[int, typer.Option(help="Most tokens of a wave.", min=1)] = 512,
    block: Annotated[int, typer.Option(help="Tokens per block.")] = 32,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each stage.")] = 400_000,
    dtype: Annotated[str, typer.Option(help=f"Of weights and KV: {' or '.join(DTYPES)}.")] = DTYPES[0],
    seed: Annotated[int, typer.Option(help="What prompts are drawn from.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print where the time of a wave goes."""
    require_known((dtype,), DTYPES)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory:
        path = model if model is not None else tiny_llama(Path(directory))
        vocabulary = json.loads((path / "config.json").read_text())["vocab_size"]
        try:
            traffic = traffic_of(cell, seed, vocabulary)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--cell") from error
        config = EngineConfig(
            model=path,
            pp=stages,
            dtype=cast(Dtype, dtype),
            threads=max(1, cores // stages),
            max_num_batched_tokens=wave_tokens,
            block_size=block,
            kv_tokens=kv_tokens,
            max_model_len=traffic.longest + 8,
            max_num_seqs=128,
        )
        machine = limits()
        served = serve(config, traffic)
        layers = partition_layers(read_model_info(path), stages, None)
        forwards = [_kinds(config, rank, part) for rank, part in zip(served.ranks, layers, strict=True)]
    _print(cell, served, forwards, machine)
    if out is not None:
        kept = {**vars(origin_now()), "cell": cell, "limits": machine, "forward_ms": forwards}
        out.write_bytes(msgspec.json.format(msgspec.json.encode({**kept, "served": served}), indent=1))


def _kinds(config: EngineConfig, rank: RankTime, layers: range) -> dict[str, float]:
    arguments = (config.model, layers, rank.spans, config.dtype, config.block_size, config.threads)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(kinds, *arguments).result(KINDS_SECONDS)


def _print(cell: str, served: Served, forwards: list[dict[str, float]], machine: dict[str, float]) -> None:
    console, figures, ranks = Console(), served.figures, served.ranks
    requests = len(figures.completion)
    console.print(
        f"{cell}: {figures.throughput:,.0f} tokens/s, {requests / figures.seconds:,.0f} requests/s, "
        f"{figures.waves} waves, {figures.rounds} rounds; {origin_now()}"
    )
    console.print("one core: " + "; ".join(f"{name} {value:,.0f}" for name, value in machine.items()))
    stages = [f"stage {number}" for number in range(len(ranks))]
    loop = plain_table("LOOP thread, ms of a wave", texts=["part"], numbers=[*stages])
    for part in (*LOOP_PARTS.values(), "messages, turns"):
        loop.add_row(part, *(f"{1000 * rank.loop.get(part, 0.0) / rank.waves:.2f}" for rank in ranks))
    loop.add_row("all", *(f"{1000 * figures.seconds / rank.waves:.2f}" for rank in ranks))
    print_table(console, loop)
    sizes = ", ".join(f"{sum(length for _, length, _ in rank.spans)} of {len(rank.spans)}" for rank in ranks)
    forward = plain_table(
        "Forward of the median wave alone, ms",
        f"tokens, of requests: {sizes}",
        texts=["kind"],
        numbers=[each for stage in stages for each in (stage, "%")],
    )
    totals = [sum(each.values()) for each in forwards]
    for kind in forwards[0]:
        shares = zip(forwards, totals, strict=True)
        forward.add_row(
            kind, *(f for each, all_ in shares for f in (f"{each[kind]:.2f}", f"{each[kind] / all_:.0%}"))
        )
    forward.add_row("all", *(f for all_ in totals for f in (f"{all_:.2f}", "")))
    print_table(console, forward)
    cpu = plain_table("CPU, ms of a request", texts=["threads"], numbers=["client", *stages])
    cpu.add_row("all", f"{1000 * served.client_cpu / requests:.3f}", *("" for _ in stages))
    for kind in sorted({name for rank in ranks for name in rank.cpu}):
        cpu.add_row(kind, "", *(f"{1000 * rank.cpu.get(kind, 0.0) / requests:.3f}" for rank in ranks))
    print_table(console, cpu)


if __name__ == "__main__":
    typer.run(main)
