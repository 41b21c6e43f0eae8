"""This engine on one GPU: ``python -m bench.gpu``, without a network.

Models of known shapes with random weights; 1, 2 and 4 ranks that share the card; long and short prompts. Beside them
the card's own rate of dense matrix products, and transformers' forward with SDPA, which computes each prompt alone. Of
cold prompts also as many engines of one rank as a pipeline has ranks, side by side: what these lose is what sharing the
card costs, and what the pipeline loses beyond that is its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from wavepp_worker import EngineConfig, PrefillEngine, token_ids
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.device.placement import check_device

from bench.common.closed_loop import HEARTBEAT, send_all
from bench.common.origin import origin_now
from bench.common.percentile import p95, percentile
from bench.common.policies import require_known
from bench.gpu.plain import matmul_rate, plain_seconds
from bench.gpu.rows import Row, print_rows, side_by_side
from bench.gpu.shapes import SHAPES, write_model
from bench.vllm.cells import Traffic, traffic_of

CELLS = (
    "cold:2048:8:64",
    "cold:8192:4:32",
    "cold:32768:2:8",
    "cold:131072:1:3",
    "reuse:32768:8:32",
    "mixed:32768:8:48",
    "burst:8192:256:16:64:4",
)
LONGER = 8
"""Tokens that a model may be given beyond the longest prompt."""
PLAIN_PROMPTS = 4
"""Of each cell, how many transformers computes: one says as much as all."""


def ours(name: str, cell: str, traffic: Traffic, config: EngineConfig, rate: float, engines: int = 1) -> Row:
    """Run a cell on fresh engines, which a prompt of each size has warmed up; each gets its part of the clients."""
    with contextlib.ExitStack() as stack:
        those = [stack.enter_context(PrefillEngine(config)) for _ in range(engines)]
        for engine in those:
            _warm_up(engine, traffic, config.max_num_batched_tokens)
        parts = [list(map(token_ids.pack, traffic.prompts[at::engines])) for at in range(engines)]
        clients = traffic.clients // engines
        time.sleep(HEARTBEAT)
        before, begun = _idle(those), time.perf_counter()
        with ThreadPoolExecutor(engines) as pool:
            answers = pool.map(lambda engine, part: send_all(engine, part, clients, "timed"), those, parts)
            results = [each for part in answers for each in part]
        seconds = time.perf_counter() - begun
        time.sleep(HEARTBEAT)
        idle = {cause: total - before[cause] for cause, total in _idle(those).items()}
    tokens = sum(each.prompt_tokens for each in results)
    flops = SHAPES[name].flops(((each.prompt_tokens, each.reused_tokens) for each in results), trimmed=True)
    completion = [each.timings.total for each in results]
    reused = sum(each.reused_tokens for each in results) / tokens
    return Row(
        name,
        cell,
        f"P={config.pp}" if engines == 1 else side_by_side(engines),
        tokens / seconds,
        flops / seconds / rate,
        reused,
        percentile(completion, 0.5),
        p95(completion),
        idle,
    )


def can_be_divided(cell: str, traffic: Traffic, engines: int, kv_tokens: int) -> bool:
    """Whether so many engines, each with its part of the memory, do as much as one would: none shares a prefix."""
    fits = traffic.longest + LONGER <= kv_tokens // engines
    return engines > 1 and cell.startswith("cold:") and traffic.clients >= engines and fits


def _warm_up(engine: PrefillEngine, traffic: Traffic, wave_tokens: int) -> None:
    for length in sorted({min(each, traffic.longest) for each in (64, 2048, wave_tokens)}):
        engine.prefill([1] * length)
    for prompt in traffic.known:
        engine.prefill(prompt)


def _idle(engines: Sequence[PrefillEngine]) -> dict[str, float]:
    loads = [load for engine in engines for load in engine.stats().ranks]
    causes = (cause for cause in loads[0].idle if cause != "no_requests")
    return {cause: sum(load.idle[cause] for load in loads) for cause in causes}


def plain(name: str, cell: str, traffic: Traffic, directory: Path, device: str, rate: float) -> Row:
    """The first prompts of a cell, each computed whole and alone."""
    prompts = traffic.prompts[:PLAIN_PROMPTS]
    taken = plain_seconds(directory, prompts, device)
    tokens = sum(map(len, prompts))
    flops = SHAPES[name].flops(((len(prompt), 0) for prompt in prompts), trimmed=False)
    seconds = sum(taken)
    return Row(
        name,
        cell,
        "transformers",
        tokens / seconds,
        flops / seconds / rate,
        0.0,
        percentile(taken, 0.5),
        p95(taken),
        {},
    )


def _attempt(name: str, cell: str, side: str, measure: Callable[[], Row]) -> Row:
    """What one cell of one side gives; a card that has no room for it may have for the others."""
    try:
        row = measure()
    except (WaveppError, RuntimeError) as error:
        row = Row(name, cell, side, 0.0, 0.0, 0.0, 0.0, 0.0, {}, str(error).splitlines()[0])
    said = f"failed: {row.failed}" if row.failed else f"{row.tokens_per_second:,.0f} tokens/s"
    print(f"{name} {cell} {side}: {said}", file=sys.stderr, flush=True)
    return row


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu to see it run.")] = "cuda",
    shape: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(SHAPES)}; default: 1b and 8b.")
    ] = None,
    cell: Annotated[list[str] | None, typer.Option(help=f"Default: {', '.join(CELLS)}.")] = None,
    stages: Annotated[list[int] | None, typer.Option(help="Ranks; default: 1, 2 and 4.")] = None,
    wave_tokens: Annotated[int, typer.Option(help="Most tokens of a wave.")] = 8192,
    block: Annotated[int, typer.Option(help="Tokens per block.")] = 32,
    kv_tokens: Annotated[int, typer.Option(help="Tokens of KV of each rank.")] = 300_000,
    seed: Annotated[int, typer.Option(help="What prompts are drawn from.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print each cell's tokens per second, utilisation, times and idle seconds, for every number of ranks.

    Cells that fail are left out, with the reason in their place, and the exit code is 1.
    """
    transformers.utils.logging.disable_progress_bar()
    names, cells = tuple(shape or ("1b", "8b")), tuple(cell or CELLS)
    require_known(names, SHAPES)
    # All ranks share one card, also where there are more.
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    rows: list[Row] = []
    try:
        check_device(device)
        if device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(
                f"device: {device}: torch {torch.__version__} is not built for this GPU's driver"
            )
        if out is not None:
            try:
                # Found out now, rather than when all is measured.
                out.touch()
            except OSError as error:
                raise ConfigError(f"--out is {out}, which cannot be written: {error.strerror}") from error
        card = "a CPU" if device == "cpu" else torch.cuda.get_device_name(device)
        rate = matmul_rate(device)
        for name in names:
            traffics = {each: traffic_of(each, seed, SHAPES[name].vocabulary) for each in cells}
            with tempfile.TemporaryDirectory() as directory:
                path = write_model(Path(directory), SHAPES[name], device)
                _release(device)
                for each, traffic in traffics.items():
                    for ranks, engines in _sides(each, traffic, stages or (1, 2, 4), kv_tokens):
                        config = EngineConfig(
                            model=path,
                            pp=ranks,
                            dtype="bfloat16",
                            device=device,
                            threads=max(1, len(os.sched_getaffinity(0)) // (ranks * engines)),
                            max_num_batched_tokens=wave_tokens,
                            block_size=block,
                            kv_tokens=kv_tokens // engines,
                            max_model_len=traffic.longest + LONGER,
                            max_num_seqs=128,
                        )
                        measure = partial(ours, name, each, traffic, config, rate, engines)
                        side = f"P={ranks}" if engines == 1 else side_by_side(engines)
                        rows.append(_attempt(name, each, side, measure))
                    measure = partial(plain, name, each, traffic, path, device, rate)
                    rows.append(_attempt(name, each, "transformers", measure))
                    _release(device)
                    if out is not None:
                        _keep(out, rows, card, rate)
    except (ValueError, WaveppError) as error:
        raise SystemExit(f"error: {error}") from error
    print_rows(rows, card, rate)
    if any(row.failed for row in rows):
        raise SystemExit(1)


def _sides(cell: str, traffic: Traffic, stages: Sequence[int], kv_tokens: int) -> Iterator[tuple[int, int]]:
    """Ranks of an engine, and engines."""
    for ranks in stages:
        yield ranks, 1
        if can_be_divided(cell, traffic, ranks, kv_tokens):
            yield 1, ranks


def _keep(out: Path, rows: Sequence[Row], card: str, rate: float) -> None:
    kept = {**vars(origin_now()), "card": card, "matmul_flops_per_second": rate}
    out.write_text(json.dumps({**kept, "rows": [asdict(row) for row in rows]}, indent=1))


def _release(device: str) -> None:
    """Leave the card's memory to the ranks, which are other processes."""
    if device != "cpu":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
