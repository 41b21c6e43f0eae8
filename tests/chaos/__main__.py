"""``python -m tests.chaos``: hurt whole graphs under load, and see that every request gets an answer or an error."""

from __future__ import annotations

import random
import resource
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer
from rich.console import Console

from bench.common.origin import origin_now
from tests.chaos.campaign import Campaign
from tests.chaos.display import Display
from tests.chaos.known_answers import known_answers
from tests.chaos.picture import draw
from tests.chaos.schedule import draw_schedule
from tests.chaos.settings import DEFAULT, SETTINGS, TIERS
from tests.chaos.summary import summarise
from tests.chaos.tables import print_summary
from tests.support.ascii_model import make_ascii_model
from tests.support.graph_process import REPOSITORY

CASES, LONGEST_PROMPT, CHECKS = 96, 2400, 24
CALM_SALTED = 0.5
"""What grows with every prompt that is new shows only where prompts are."""


def main(
    minutes: Annotated[float, typer.Option(help="Of load, shared evenly by the graphs.")] = 20.0,
    seed: Annotated[int | None, typer.Option(help="Run this one again; drawn if not given.")] = None,
    rate: Annotated[float, typer.Option(help="Requests a second.")] = 4.0,
    requests: Annotated[
        int, typer.Option(help="At least so many to each graph, even if that takes longer.")
    ] = 500,
    calm: Annotated[
        bool, typer.Option("--calm", help="Without faults, to see whether processes grow.")
    ] = False,
    graph: Annotated[
        list[str] | None, typer.Option(help="default, tiers, queue; the first two if not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for what is kept.")] = REPOSITORY / ".run" / "chaos",
) -> None:
    """Faults drawn from a seed, for some minutes; exit code 1 if anything happened that must not."""
    console, origin = Console(log_path=False), origin_now()
    seed = random.randrange(2**32) if seed is None else seed
    names = graph or [DEFAULT.name, TIERS.name]
    unknown = sorted(set(names) - set(SETTINGS))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(SETTINGS)}", param_hint="--graph")
    console.print(
        f"seed {seed}; again: python -m tests.chaos --seed {seed} --minutes {minutes:g} --rate {rate:g}"
        + " --calm" * calm
    )
    # Floods take thousands of connections.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Threads that wait for each other by spinning are slow beside other work.
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory(prefix="chaos-model-") as scratch, Display(console) as display:
        display.phase("answers as transformers gives them", CASES)
        model = make_ascii_model(Path(scratch) / "tiny-ascii")
        cases = known_answers(model, seed, CASES, LONGEST_PROMPT, display.step)
        for name in names:
            setting, seconds = SETTINGS[name], 60.0 * minutes / len(names)
            campaign = Campaign(
                setting,
                model,
                cases,
                [] if calm else draw_schedule(seed, seconds, setting.faults),
                seed=seed,
                seconds=seconds,
                rate=rate,
                checks=CHECKS,
                display=display,
                salted=CALM_SALTED if calm else 0.0,
                least=requests,
            )
            kept = out / f"{seed}-{name}"
            kept.mkdir(parents=True, exist_ok=True)
            try:
                record = campaign.run()
            finally:
                (kept / "log.txt").write_text(campaign.log)
                (kept / "record.json").write_bytes(msgspec.json.encode(campaign.record))
            summary = summarise(record, origin.commit or "?", origin.date)
            (kept / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)))
            draw(record, kept / "timeline.png")
            print_summary(console, summary)
            console.print(f"kept in {kept}")
            failed = failed or bool(summary.failures)
    raise typer.Exit(failed)


if __name__ == "__main__":
    typer.run(main)
