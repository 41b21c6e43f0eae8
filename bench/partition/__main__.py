"""How a model's layers are best divided over stages on this machine: ``python -m bench.partition --model DIR``.

An engine counts the parameters that a token is multiplied with. That knows nothing of what attention over a long prefix
costs beside a window, an indexer or a recurrent layer, nor of how fast experts are here. This times stages of one layer
of each kind, in a wave of the size and with the prefixes that you expect, finds the division in which the slowest stage
is fastest, times its stages and those of the default one, and says which ``partition`` to set, if any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.model_info import ModelInfo, read_model_info
from wavepp_worker.model.partition import check_partition, partition_layers

from bench.common.origin import origin_now
from bench.common.policies import require_known
from bench.common.tables import plain_table, print_table
from bench.partition.stage_times import StageTimes, Wave
from bench.vllm.sides import DTYPES

LEAST_GAIN = 0.01
"""Of the slowest stage's speed: less is noise, for which no setting is worth it."""


@dataclass(frozen=True)
class Division:
    """Layers over so many stages.

    Attributes:
        default: layers of each stage, without the setting.
        best: by what was timed.
        seconds: of the slowest stage of each, timed as a whole.
        bound: what a stage would take if all were alike.
    """

    default: tuple[range, ...]
    best: tuple[range, ...]
    seconds: tuple[float, float]
    bound: float

    @property
    def gain(self) -> float:
        """How much faster the slowest stage becomes; 0 if it is not worth a setting."""
        default, best = self.seconds
        gain = default / best - 1
        return gain if gain >= LEAST_GAIN else 0.0


def divide(times: StageTimes, layers: Sequence[float], stage: float, pp: int) -> Division:
    """Find the best division, and time its stages and the default one's.

    Args:
        layers: seconds of each.
        stage: seconds of a stage, whatever it has.
    """
    timed = replace(times.info, layer_costs=tuple(layers), embedding_cost=0.0, head_cost=0.0)
    default, best = (partition_layers(info, pp, None) for info in (times.info, timed))
    slowest = [max(times.seconds(each) for each in division) for division in (default, best)]
    return Division(default, best, (slowest[0], slowest[1]), stage + sum(layers) / pp)


def main(
    model: Annotated[Path, typer.Option(help="A Hugging Face directory.")],
    stages: Annotated[
        list[int] | None, typer.Option(help="Of the pipeline; default: 2, 4 and 8.", min=2)
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
    torch.set_num_threads(threads)
    console = Console()
    try:
        info = read_model_info(model)
        _require(info, tokens + behind, stages or ())
        with console.status("") as status:
            times = StageTimes(
                info,
                Wave(requests, tokens, behind),
                dtype,
                device,
                lambda layers: status.update(f"timing layers {layers.start} to {layers.stop - 1}"),
            )
            layers, stage = times.by_layer()
            asked = dict.fromkeys(stages or (each for each in (2, 4, 8) if each <= info.num_layers))
            divisions = {pp: divide(times, layers, stage, pp) for pp in asked}
    except WaveppError as error:
        raise typer.BadParameter(str(error)) from error
    except RuntimeError as error:
        raise typer.BadParameter(
            f"a wave of {requests} prompts of {tokens} tokens behind {behind} cannot be computed here "
            f"({str(error).splitlines()[0]}); ask for less, or for more stages with --stages"
        ) from error
    _print_layers(console, times, layers, stage)
    _print_divisions(console, divisions)


def _require(info: ModelInfo, positions: int, stages: Sequence[int]) -> None:
    if not info.caches:
        raise typer.BadParameter("its layers compute nothing, but take a time", param_hint="--model")
    if info.num_layers < 2:
        raise typer.BadParameter("it has one layer, which no two stages can share", param_hint="--model")
    if positions > info.context_length:
        raise typer.BadParameter(
            f"{positions} tokens of a prompt are more than the model's context of {info.context_length}",
            param_hint="--behind",
        )
    for pp in stages:
        check_partition(info.num_layers, pp, None)


def _print_layers(console: Console, times: StageTimes, layers: Sequence[float], stage: float) -> None:
    table = plain_table(
        "A wave in a layer",
        f"a stage takes {1000 * stage:.2f} ms more, whatever it has; {origin_now()}",
        texts=["layer", "keeps"],
        numbers=["layers alike", "ms", "million parameters"],
    )
    info, kinds = times.info, times.kinds
    last = info.num_layers - 1
    for layer in sorted(set(kinds)):
        cost = info.layer_costs[layer] + (info.head_cost if layer == last else 0.0)
        table.add_row(
            f"{layer}, with the head" if layer == last else str(layer),
            info.caches[layer].kind,
            str(kinds.count(layer)),
            f"{1000 * layers[layer]:.2f}",
            f"{cost / 1e6:.1f}",
        )
    print_table(console, table)


def _print_divisions(console: Console, divisions: dict[int, Division]) -> None:
    table = plain_table(
        "The slowest stage, ms of a wave",
        "bound: if all stages were alike; speed: of the slowest stage, over the default",
        texts=["stages", "default", "partition to set"],
        numbers=["default", "with it", "bound", "speed"],
    )
    for pp, each in divisions.items():
        default, best = (",".join(str(len(layers)) for layers in way) for way in (each.default, each.best))
        table.add_row(
            str(pp),
            default,
            best if each.gain else "none",
            *(f"{1000 * seconds:.2f}" for seconds in (each.seconds[0], each.seconds[1 if each.gain else 0])),
            f"{1000 * each.bound:.2f}",
            f"{1 + each.gain:.2f}",
        )
    print_table(console, table)


if __name__ == "__main__":
    typer.run(main)
