"""The retention sweep on real ranks with recurrent layers: ``python -m bench.retention.real``.

A small random Qwen3-Next, three layers of four recurrent, on two ranks. As in ``bench.retention`` half of the requests
carry one of 24 prefixes and a suffix of their own, and the other half is cold; lengths are a 512th. Eight are under way
at a time. The pools hold a share of the prefixes' tokens; a prompt can be resumed only where a snapshot was kept.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from wavepp_worker import EngineConfig, PrefillEngine

from bench.common.closed_loop import send_all
from bench.common.prompts import Prompts
from bench.common.small_model import VOCABULARY, random_hybrid
from bench.common.tables import plain_table, print_table
from bench.retention.report import GOOD

PREFIXES = 24
PREFIX, SUFFIX, COLD = 232, 24, 128
AT_ONCE = 8
BLOCK, INTERVAL = 8, 64


def measure(model: Path, pool: float, requests: int) -> tuple[float, float, int, int]:
    """Share of good hits and of the prefixes' tokens that were reused; tokens of the pool, and states.

    Args:
        pool: of the device in all prefixes' tokens.
    """
    new, draw = Prompts(1, VOCABULARY), random.Random(1)
    prefixes = [new.tokens(PREFIX) for _ in range(PREFIXES)]
    warm = [draw.choice(prefixes) + new.tokens(SUFFIX) for _ in range(requests // 2)]
    mixed = [prompt for each in warm for prompt in (each, new.tokens(COLD))]
    kv_tokens = round(pool * PREFIXES * PREFIX)
    config = EngineConfig(
        model=model,
        dtype="float32",
        pp=2,
        block_size=BLOCK,
        kv_tokens=kv_tokens,
        max_model_len=PREFIX + SUFFIX,
        max_num_batched_tokens=128,
        max_num_seqs=AT_ONCE,
        snapshot_interval=INTERVAL,
    )
    with PrefillEngine(config) as engine:
        send_all(engine, prefixes, AT_ONCE, "prefix")
        results = send_all(engine, mixed, AT_ONCE, "request")
        engine.audit()
    reused = [result.reused_tokens for result in results[::2]]
    good = sum(each >= GOOD * PREFIX for each in reused) / len(reused)
    share = sum(min(each, PREFIX) for each in reused) / (PREFIX * len(reused))
    return good, share, kv_tokens, AT_ONCE + kv_tokens // INTERVAL


def main(
    pools: Annotated[list[float] | None, typer.Option("--pool", help="In all prefixes' tokens.")] = None,
    requests: Annotated[int, typer.Option(help="With each pool.")] = 200,
) -> None:
    """Print how many requests reused what of their prefix, for pools of several sizes."""
    table = plain_table(
        "Prefix retention on real ranks with recurrent layers",
        f"a good hit reuses at least {GOOD:.0%} of its prefix",
        numbers=["pool", "tokens", "states", "good hits", "reused of prefixes"],
    )
    with tempfile.TemporaryDirectory() as directory:
        model = random_hybrid(Path(directory))
        for pool in pools or [0.5, 1.0, 1.8]:
            good, share, tokens, states = measure(model, pool, requests)
            table.add_row(f"{pool:g}", str(tokens), str(states), f"{good:.1%}", f"{share:.1%}")
    print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
