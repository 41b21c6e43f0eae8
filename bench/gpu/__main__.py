"""This engine on one GPU: ``python -m bench.gpu``, without a network.

Models of known shapes with random weights; 1, 2 and 4 ranks that share the card; long and short prompts. Beside them
the card's own rate of dense matrix products, and transformers' forward with SDPA, which computes each prompt alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from rich.console import Console
from wavepp_worker import EngineConfig, PrefillEngine, token_ids
from wavepp_worker.errors import ConfigError, WaveppError
from wavepp_worker.model.device import check_device

from bench.common.closed_loop import HEARTBEAT, send_all
from bench.common.origin import origin_now
from bench.common.percentile import p95, percentile
from bench.common.policies import require_known
from bench.common.tables import NOTHING, plain_table, print_table
from bench.gpu.plain import matmul_rate, plain_seconds
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
PLAIN_PROMPTS = 4
"""Of each cell, how many transformers computes: one says as much as all."""


@dataclass(frozen=True)
class Row:
    """One cell of one side.

    Attributes:
        side: ``P=1``, or ``transformers``.
        tokens_per_second: prompt tokens, reused ones included, over the time of all.
        utilisation: operations of what was computed, by the seconds and by the card's rate of matrix products.
        idle: seconds in which ranks computed nothing although there were requests, by cause, over all ranks; empty for
            transformers.
        failed: why there are no figures, such as a card without room; empty if there are.
    """

    shape: str
    cell: str
    side: str
    tokens_per_second: float
    utilisation: float
    reused: float
    p50: float
    p95: float
    idle: dict[str, float]
    failed: str = ""


def ours(name: str, cell: str, traffic: Traffic, config: EngineConfig, rate: float) -> Row:
    """Run a cell on a fresh engine, which a prompt of each size has warmed up."""
    with PrefillEngine(config) as engine:
        for length in sorted(
            {min(each, traffic.longest) for each in (64, 2048, config.max_num_batched_tokens)}
        ):
            engine.prefill([1] * length)
        for prompt in traffic.known:
            engine.prefill(prompt)
        time.sleep(HEARTBEAT)
        before, begun = _idle(engine), time.perf_counter()
        results = send_all(engine, map(token_ids.pack, traffic.prompts), traffic.clients, "timed")
        seconds = time.perf_counter() - begun
        time.sleep(HEARTBEAT)
        idle = {cause: total - before[cause] for cause, total in _idle(engine).items()}
    tokens = sum(each.prompt_tokens for each in results)
    flops = SHAPES[name].flops((each.prompt_tokens, each.reused_tokens) for each in results)
    completion = [each.timings.total for each in results]
    reused = sum(each.reused_tokens for each in results) / tokens
    return Row(
        name,
        cell,
        f"P={config.pp}",
        tokens / seconds,
        flops / seconds / rate,
        reused,
        percentile(completion, 0.5),
        p95(completion),
        idle,
    )


def _idle(engine: PrefillEngine) -> dict[str, float]:
    loads = engine.stats().ranks
    causes = (cause for cause in loads[0].idle if cause != "no_requests")
    return {cause: sum(load.idle[cause] for load in loads) for cause in causes}


def plain(name: str, cell: str, traffic: Traffic, directory: Path, device: str, rate: float) -> Row:
    """The first prompts of a cell, each computed whole and alone."""
    prompts = traffic.prompts[:PLAIN_PROMPTS]
    taken = plain_seconds(directory, prompts, device)
    tokens, flops = sum(map(len, prompts)), SHAPES[name].flops((len(prompt), 0) for prompt in prompts)
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
                    for ranks in stages or (1, 2, 4):
                        config = EngineConfig(
                            model=path,
                            pp=ranks,
                            dtype="bfloat16",
                            device=device,
                            threads=max(1, len(os.sched_getaffinity(0)) // ranks),
                            max_num_batched_tokens=wave_tokens,
                            block_size=block,
                            kv_tokens=kv_tokens,
                            max_model_len=traffic.longest + 8,
                            max_num_seqs=128,
                        )
                        measure = partial(ours, name, each, traffic, config, rate)
                        rows.append(_attempt(name, each, f"P={ranks}", measure))
                    measure = partial(plain, name, each, traffic, path, device, rate)
                    rows.append(_attempt(name, each, "transformers", measure))
                    _release(device)
                    if out is not None:
                        _keep(out, rows, card, rate)
    except (ValueError, WaveppError) as error:
        raise SystemExit(f"error: {error}") from error
    _print(rows, card, rate)
    if any(row.failed for row in rows):
        raise SystemExit(1)


def _keep(out: Path, rows: Sequence[Row], card: str, rate: float) -> None:
    kept = {**vars(origin_now()), "card": card, "matmul_flops_per_second": rate}
    out.write_text(json.dumps({**kept, "rows": [asdict(row) for row in rows]}, indent=1))


def _release(device: str) -> None:
    """Leave the card's memory to the ranks, which are other processes."""
    if device != "cpu":
        torch.cuda.empty_cache()


def _print(rows: Sequence[Row], card: str, rate: float) -> None:
    table = plain_table(
        f"{card}, {rate / 1e12:.2f} TFLOP/s in dense bfloat16 matrix products, measured at {origin_now()}",
        "tok/s: prompt tokens, reused ones included; MFU: operations computed, of those of matrix products in that "
        "time; idle: seconds in which ranks computed nothing, all together",
        texts=["model", "cell", "side"],
        numbers=["tok/s", "of P=1", "MFU", "reused", "p50 s", "p95 s", "idle s, most for"],
    )
    for row in rows:
        if row.failed:
            table.add_row(row.shape, row.cell, row.side, *[NOTHING] * 6, row.failed)
            continue
        wanted = (row.shape, row.cell, "P=1", "")
        alone = next(
            (each for each in rows if (each.shape, each.cell, each.side, each.failed) == wanted), None
        )
        most = sorted(row.idle.items(), key=lambda each: -each[1])[:2]
        table.add_row(
            row.shape,
            row.cell,
            row.side,
            f"{row.tokens_per_second:,.0f}",
            NOTHING if alone is None else f"{row.tokens_per_second / alone.tokens_per_second:.2f}",
            f"{row.utilisation:.1%}",
            f"{row.reused:.1%}",
            f"{row.p50:.3f}",
            f"{row.p95:.3f}",
            f"{sum(row.idle.values()):.2f}: {', '.join(f'{cause} {seconds:.2f}' for cause, seconds in most)}"
            if row.idle
            else NOTHING,
        )
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
