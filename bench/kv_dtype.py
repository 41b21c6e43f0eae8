"""What keeping KV in FP8 does to logprobs.

``python -m bench.kv_dtype [--model DIR] [--text FILE]`` runs one text through the model and compares, after every 64
tokens, the logprobs of the tokens that are likeliest in float32 with those in which KV, or everything, is narrower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from transformers import AutoTokenizer
from wavepp_worker.model.files.demo_model import ensure_demo_model
from wavepp_worker.model.model_shape import read_model_shape
from wavepp_worker.model.stage import Chunk
from wavepp_worker.model.stage_loader import load_stage

from bench.common.origin import origin_now
from bench.common.tables import plain_table, print_table

CHUNK, BLOCK, LIKELIEST = 64, 16, 20
KINDS = (("float32", "auto"), ("bfloat16", "auto"), ("float32", "fp8"), ("bfloat16", "fp8"))


def logprobs(model: Path, tokens: torch.Tensor, dtype: str, kv_dtype: str) -> tuple[torch.Tensor, int]:
    """``[chunks, vocabulary]`` after each chunk of ``tokens``, and the bytes that a token's KV takes."""
    layers = read_model_shape(model).num_layers
    if layers is None:
        raise typer.BadParameter(f"{model}/config.json does not say num_hidden_layers")
    stage = load_stage(model, range(layers), getattr(torch, dtype), "cpu", (), kv_dtype)
    table = torch.arange(-(-len(tokens) // BLOCK))
    kv = stage.make_kv(len(table), BLOCK)
    rows = []
    for start in track(range(0, len(tokens), CHUNK), f"{dtype}, KV {kv_dtype}", transient=True):
        part = tokens[start : start + CHUNK]
        output = stage.forward(part, [Chunk(start, len(part), table, wants_logits=True)], kv)
        assert output.logits is not None
        rows.append(output.logits[0].log_softmax(-1))
    return torch.stack(rows), kv.bytes_per_token


def main(
    model: Annotated[Path | None, typer.Option(help="Model directory; default: the demo model.")] = None,
    text: Annotated[Path, typer.Option(help="What to run.")] = Path("README.md"),
    tokens: Annotated[int, typer.Option(help="Of the text, at most.", min=CHUNK)] = 1536,
) -> None:
    """Compare logprobs with KV in FP8 with those without."""
    directory = model or ensure_demo_model()
    ids = torch.tensor(AutoTokenizer.from_pretrained(directory)(text.read_text())["input_ids"][:tokens])
    table = plain_table(
        "How far logprobs are from those in float32",
        f"of the likeliest token, and of the {LIKELIEST} likeliest",
        texts=("computed in", "KV"),
        numbers=("bytes a token", "likeliest: mean", "largest", f"{LIKELIEST}: mean", "largest"),
    )
    exact, _ = logprobs(directory, ids, *KINDS[0])
    top = exact.topk(LIKELIEST, -1).indices
    for dtype, kv_dtype in KINDS:
        found, size = logprobs(directory, ids, dtype, kv_dtype)
        error = (found - exact).abs().gather(1, top)
        figures = (error[:, 0].mean(), error[:, 0].max(), error.mean(), error.max())
        table.add_row(dtype, kv_dtype, str(size), *(f"{float(figure):.3f}" for figure in figures))
    console = Console()
    console.print(f"{directory.name}, {len(ids)} tokens of {text}, after every {CHUNK}; {origin_now()}")
    print_table(console, table)


if __name__ == "__main__":
    typer.run(main)
