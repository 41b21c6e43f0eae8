"""A timeline as a picture: ``python -m bench.timeline_picture picture.png``.

Draws what ui.perfetto.dev shows of a file that ``wavepp prefill --timeline`` or ``bench.trace --timeline`` wrote: a row
for each rank, with its waves as boxes, each divided among its requests, and above them when the rank was at admission.
Without such a file, 14 prompts run on one replica of four ranks: real processes, and GLM 5.2 on virtual devices.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from wavepp_worker import EngineConfig, PrefillEngine, PrefillRequest

from bench.common.figure_style import save
from bench.common.systems import BLOCK, VOCABULARY, WAVE_TOKENS, write_model_dir

LOOP, DEVICE, ADMISSION = "loop", "device", "admission"
"""Tracks of a timeline: waves are on the device's where it runs behind the host, else on the loop's."""
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#999999")
"""Requests take turns at them."""
LEAST_SHARE = 0.0012
"""Of the picture's width: what takes less is drawn as wide as that, or it would not be seen."""
LABEL_SHARE = 0.014
"""Of the picture's width, that a label needs for each of its characters."""
SYSTEM, STAGES = "glm-5.2-pp4", 4
SHARED_TOKENS = 32_768
OWN_TOKENS = (
    12_000,
    9_000,
    4_000,
    6_000,
    3_000,
    26_000,
    2_500,
    5_000,
    20_000,
    1_500,
    7_000,
    6_000,
    9_000,
    3_000,
)
SHARING = (2, 4, 6, 9, 11)
"""Which of the prompts begin with the shared tokens."""
VIRTUAL = (
    f"A replica of {STAGES} ranks, {len(OWN_TOKENS)} prompts. Real processes; "
    "GLM 5.2 on virtual devices (times of a cost model)"
)


@dataclass(frozen=True)
class Box:
    """Something that a rank did, in seconds of the timeline; a wave has its tokens by request, admission has none."""

    rank: int
    start: float
    seconds: float
    tokens: dict[str, int]


def read_boxes(trace: Path) -> list[Box]:
    """The waves and the admission of every rank, in order of time, from the first of them on.

    Raises:
        BadParameter: the file is no timeline, or one without a wave.
    """
    try:
        events = json.loads(trace.read_text())["traceEvents"]
        slices = [event for event in events if event["ph"] == "X"]
        waves = {track: [each for each in slices if _is_wave(each, track)] for track in (DEVICE, LOOP)}
        rounds = [each for each in slices if each["cat"] == ADMISSION and each["name"].startswith("round")]
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(f"{trace} is not a timeline ({type(error).__name__}: {error})") from error
    shown = waves[DEVICE] or waves[LOOP]
    if not shown:
        raise typer.BadParameter(f"{trace} has no wave: nothing was computed while it was written")
    first, last = (
        pick(each["ts"] + each["dur"] * end for each in shown) for pick, end in ((min, 0), (max, 1))
    )
    shown += [each for each in rounds if each["ts"] < last]
    first = min(first, *(each["ts"] for each in shown))
    return [_box(each, first) for each in sorted(shown, key=lambda each: each["ts"])]


def _is_wave(event: dict[str, Any], track: str) -> bool:
    return event["cat"] == track and "spans" in event["args"]


def _box(event: dict[str, Any], origin: float) -> Box:
    tokens: dict[str, int] = {}
    for request, span in zip(event["args"].get("requests", ()), event["args"].get("spans", ()), strict=False):
        start, end = map(int, span.split(" to "))
        tokens[request] = tokens.get(request, 0) + end - start
    return Box(event["pid"] - 1, (event["ts"] - origin) / 1e6, event["dur"] / 1e6, tokens)


def draw(boxes: Sequence[Box], what: str) -> Figure:
    """The picture. ``what`` computed, for its title."""
    ranks = 1 + max(box.rank for box in boxes)
    end = max(box.start + box.seconds for box in boxes)
    numbers = _numbers([name for box in boxes for name in box.tokens])
    figure = Figure(figsize=(9, 0.72 * ranks + 1.0), layout="constrained")
    axes = figure.subplots()
    for box in boxes:
        _draw_box(axes, box, end, numbers)
    axes.set_xlim(0, end)
    axes.set_ylim(ranks, -0.08)
    axes.set_yticks([rank + 0.56 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(
        "seconds. A box is a wave; a colour, one request's share of it (by number). Black: rounds of admission"
    )
    axes.set_title(what)
    return figure


def _numbers(names: Sequence[str]) -> dict[str, int]:
    """What requests are called in the picture: their own names, to which ranks add ``-COUNT``, if those are numbers."""
    distinct = list(dict.fromkeys(names))
    own = [name.rpartition("-")[0] for name in distinct]
    if all(each.isdecimal() for each in own):
        return {name: int(each) for name, each in zip(distinct, own, strict=True)}
    return {name: count for count, name in enumerate(distinct)}


def _draw_box(axes: Axes, box: Box, end: float, numbers: dict[str, int]) -> None:
    width = max(box.seconds, LEAST_SHARE * end)
    if not box.tokens:
        axes.broken_barh([(box.start, width)], (box.rank + 0.06, 0.13), facecolor="black", linewidth=0)
        return
    top, height = box.rank + 0.24, 0.64
    frame: dict[str, Any] = {"facecolor": "none", "edgecolor": "white", "linewidth": 1.2}
    for name, tokens in box.tokens.items():
        share = height * tokens / sum(box.tokens.values())
        colour = COLOURS[numbers[name] % len(COLOURS)]
        axes.broken_barh([(box.start, width)], (top, share), facecolor=colour, linewidth=0)
        if share > 0.13 and width > LABEL_SHARE * end * len(str(numbers[name])):
            middle = (box.start + width / 2, top + share / 2)
            axes.text(*middle, str(numbers[name]), ha="center", va="center", fontsize=6.5, color="white")
        top += share
    axes.broken_barh([(box.start, width)], (box.rank + 0.24, height), **frame)


def record(directory: Path) -> Path:
    """Run the prompts, all at once, and return the file of their timeline."""
    draw_token = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [draw_token.randrange(VOCABULARY) for _ in range(count)]

    shared = tokens(SHARED_TOKENS)
    timeline = directory / "timeline.json"
    config = EngineConfig(
        model=write_model_dir(SYSTEM, 1.0, directory),
        pp=STAGES,
        max_num_batched_tokens=WAVE_TOKENS,
        block_size=BLOCK,
        kv_tokens=400_000,
        max_model_len=100_000,
        max_num_seqs=5,
        timeline=timeline,
    )
    with PrefillEngine(config) as engine:
        futures = [
            engine.submit(
                PrefillRequest.of(str(number), [*(shared if number in SHARING else ()), *tokens(count)])
            )
            for number, count in enumerate(OWN_TOKENS)
        ]
        for future in futures:
            future.result()
    return timeline


def main(
    picture: Annotated[Path, typer.Argument(help="The picture to write, .png or .svg.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="The timeline to draw; default: of 14 prompts that run now."
        ),
    ] = None,
    what: Annotated[
        str, typer.Option(help="Its title: what computed, a real or a virtual device.")
    ] = VIRTUAL,
) -> None:
    """Draw a timeline: the waves of every rank, and its admission."""
    with tempfile.TemporaryDirectory() as directory:
        boxes = read_boxes(trace or record(Path(directory)))
    print(f"written: {save(draw(boxes, what), picture)}")


if __name__ == "__main__":
    typer.run(main)
