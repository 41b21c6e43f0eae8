"""``wavepp inspect``: what a model is made of and how it would be split, without loading it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavepp_worker.errors import ConfigError
from wavepp_worker.former_names import DEFAULT_POOL_TOKENS
from wavepp_worker.setting_names import keys_as_flags
from wavepp_worker.standard_output import printing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from wavepp_worker.model.inspection import Inspection

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNKNOWN = "?"
_DEFAULTS = {"block_size": 16, "requests": 64, "wave_tokens": 512}
"""Of an engine."""


def inspect(
    model: Annotated[Path, typer.Argument(help="Hugging Face model directory; config.json is enough.")],
    pp: Annotated[int, typer.Option(help="Pipeline ranks.")] = 1,
    partition: Annotated[str | None, typer.Option(help="Layers per rank, e.g. 10,8,6,6.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="auto or fp8.")] = "auto",
    device: Annotated[str, typer.Option(help="Of the workers, cpu or cuda: auto depends on it.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a model is made of, what a token costs, how it would be split, and what is not supported.

    No weights are read. Leaves with 1 if a pipeline cannot run the model, with 2 if it cannot be looked at.
    """
    # Imported late, as transformers takes seconds to import.
    import msgspec
    from rich.console import Console

    from wavepp_worker.model.inspection import inspect_model

    try:
        sizes = None if partition is None else tuple(int(part) for part in partition.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"--partition is {partition!r}; give integers separated by commas, e.g. 10,8,6,6"
        ) from error
    try:
        found = inspect_model(model, pp, sizes, dtype, kv_dtype, device)
    except ConfigError as error:
        sentence = keys_as_flags(str(error), ("pp", "partition", "dtype", "kv_dtype"))
        typer.secho(f"error: {sentence}", fg="red", err=True)
        raise typer.Exit(2) from error
    with printing():
        if as_json:
            typer.echo(msgspec.json.encode(found).decode())
        else:
            _show(Console(), found)
    if found.unsupported:
        raise typer.Exit(1)


def _show(console: Console, found: Inspection) -> None:
    for line in headlines(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for table in (kinds_table(found), stages_table(found)):
        console.print()
        console.print(table)
    for sentence in found.unsupported:
        console.print(f"Not supported: {sentence}", highlight=False, markup=False, soft_wrap=True)


def headlines(found: Inspection) -> list[str]:
    """What is true of the model as a whole."""
    experts = f", {found.experts} experts ({found.experts_per_token} a token)" if found.experts else ""
    context = "" if found.context_length is None else f", context {found.context_length} tokens"
    stored = f", stored as {found.quantisation}" if found.quantisation else ""
    return [
        f"{found.architecture}: {_count(found.parameters)} parameters, of which a token meets "
        f"{_count(found.active_parameters)}, in {found.dtype}{stored}",
        f"{sum(len(kind.layers) for kind in found.kinds)} layers, hidden size {found.hidden_size}, vocabulary "
        f"{found.vocab_size}{context}",
        f"{found.heads} query heads, {found.kv_heads} of keys and values{experts}",
    ]


def kinds_table(found: Inspection) -> Table:
    """A row for each kind of layer."""
    table = _table(
        "Layers: sizes of one each",
        ("layers", "attention", "feed\nforward", "window"),
        ("parameters", "a token\nmeets", "cache\na token", "state\na prompt"),
    )
    for kind in found.kinds:
        table.add_row(
            spans(kind.layers),
            kind.attention.removesuffix("_attention"),
            kind.feed_forward,
            "-" if kind.window is None else str(kind.window),
            _count(kind.parameters),
            _count(kind.active_parameters),
            size(kind.cache_bytes),
            size(kind.state_bytes),
        )
    return table


def stages_table(found: Inspection) -> Table:
    """A row for each rank."""
    table = _table(
        f"Split over {len(found.stages)}",
        ("rank", "layers"),
        ("weights", "cache\na token", "cache of\n32,768\ntokens", "on host\nor disk", "state\na prompt"),
    )
    for stage in found.stages:
        pool = stage.pool_bytes(DEFAULT_POOL_TOKENS, **_DEFAULTS)
        table.add_row(
            str(stage.rank),
            spans(range(*stage.layers)),
            size(stage.weight_bytes),
            size(stage.cache_bytes),
            size(pool),
            size(stage.tier_bytes(DEFAULT_POOL_TOKENS, _DEFAULTS["block_size"])),
            size(stage.state_bytes),
        )
    return table


def _table(title: str, words: Sequence[str], amounts: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # 80 columns hold it; where there are fewer, words are broken, and nothing is cut off.
    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in amounts:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def spans(layers: tuple[int, ...] | range) -> str:
    """``0-2,5 (4)`` for layers 0, 1, 2 and 5."""
    runs = [list(run) for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])]
    shown = [f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs]
    return f"{','.join(shown)} ({len(layers)})"


def size(amount: int | None) -> str:
    """``1.5 MiB``; bytes of which little is known are a question mark."""
    if amount is None:
        return _UNKNOWN
    value, unit = float(amount), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{amount} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _count(numbers: int) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if numbers >= limit:
            return f"{numbers / limit:.1f} {unit}"
    return str(numbers)
