"""How large a sliding window's pool should be: ``python -m bench.retention.windows``.

Two virtual devices whose layers keep every token or the last ones only, with pools that all take the same memory: the
smaller the share of the windows, the more tokens there are of all layers. The host's CPU time is not charged, so the
same seed gives the same figures on every machine.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from wavepp_worker import EngineConfig
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.kv.window_pool import least_pool, window_pool

from bench.common.prompts import Prompts
from bench.common.systems import write_model_dir
from bench.common.tables import plain_table, print_table
from bench.virtual.replica import Replica, Served

TOKENS = 32_768
"""Of KV of each rank where windows have as many blocks as the others."""
BLOCK, REQUESTS, WAVE = 16, 64, 512
MODELS = {"Gemma 3": (1024, 5), "gpt-oss": (128, 1)}
"""The window, and how many layers have one for each that keeps every token."""
SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875)
RULE = 0.0
"""In place of a share: ``window_pool``."""


@dataclass(frozen=True)
class Traffic:
    """Prompts (packed token ids) of one kind, each list of which is sent one after the other, so many lists at once."""

    name: str
    sessions: Sequence[Sequence[bytes]]


def traffics(seed: int) -> list[Traffic]:
    """More than fits in every pool, the same for the same seed."""
    draw, new = random.Random(seed), Prompts(seed)

    def prefixed(
        name: str, prefixes: int, lengths: tuple[int, int], own: tuple[int, int], at_once: int
    ) -> Traffic:
        known = [new.tokens(draw.randint(*lengths)) for _ in range(prefixes)]
        prompts = [draw.choice(known) + new.tokens(draw.randint(*own)) for _ in range(120)]
        return Traffic(name, [prompts[at::at_once] for at in range(at_once)])

    return [
        Traffic("conversations", [_conversations(draw, new) for _ in range(20)]),
        prefixed("documents", 16, (3000, 6000), (60, 200), 16),
        prefixed("system prompts", 32, (1000, 2000), (100, 800), 16),
        prefixed("short prefixes", 120, (300, 600), (50, 150), 64),
        prefixed("nothing shared", 120, (0, 0), (200, 2000), 64),
    ]


def _conversations(draw: random.Random, new: Prompts) -> list[bytes]:
    """Two of three to eight turns, one after the other; a turn begins with all before it and its answer."""
    prompts = []
    for _ in range(2):
        text = b""
        for _ in range(draw.randint(3, 8)):
            text += new.tokens(draw.randint(100, 500))
            prompts.append(text)
            text += new.tokens(draw.randint(50, 300))
    return prompts


def equal_memory(window_blocks: Callable[[int], int], layers: int) -> int:
    """Most blocks for every token, if those of the windows are to take no more than where both are ``TOKENS``."""
    blocks, memory = 1, TOKENS // BLOCK * (1 + layers)
    while blocks + 1 + layers * window_blocks(blocks + 1) <= memory:
        blocks += 1
    return blocks


def measure(share: float, span: int, layers: int, traffic: Traffic) -> tuple[int, float, float]:
    """Tokens of the pool, the share of the prompts' tokens that was reused, and seconds until the last answer."""
    least = least_pool(BLOCK, span, REQUESTS, WAVE)

    def window_blocks(blocks: int) -> int:
        if share == RULE:
            return window_pool(blocks, BLOCK, span, REQUESTS, WAVE)[0]
        return min(blocks, max(least, int(share * blocks)))

    tokens = BLOCK * equal_memory(window_blocks, layers)
    spec = WindowSpec(
        "window", "sliding", window_blocks(tokens // BLOCK), span=span, wave=WAVE // BLOCK + REQUESTS
    )
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig(
            model=write_model_dir("minimax-m2.7-pp4", 1.0, Path(directory)),
            pp=2,
            block_size=BLOCK,
            kv_tokens=tokens,
            max_model_len=TOKENS // 2,
            max_num_seqs=REQUESTS,
            max_num_batched_tokens=WAVE,
        )
        replica = Replica(config, charge=0, window=lambda _: spec)
    served = replica.sessions(traffic.sessions)
    replica.audit()
    return tokens, _reused(served), replica.events.now


def _reused(served: Iterable[Served]) -> float:
    rows = list(served)
    return sum(each.reused_tokens for each in rows) / sum(each.prompt_tokens for each in rows)


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(MODELS)}; default: all.")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="Of the others' blocks; default: several.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
) -> None:
    """Print what pools of equal memory reuse, by the share of the windows, and how long all answers take."""
    kinds = traffics(seed)
    for name in model or MODELS:
        span, layers = MODELS[name]
        table = plain_table(
            f"{name}: windows of {span} tokens, {layers} layers with one for each without",
            "reused of the prompts' tokens; seconds until the last answer over those of the first row",
            numbers=["share", "kv_tokens", *(kind.name for kind in kinds)],
        )
        first: dict[str, float] = {}
        for each in [*(share or SHARES), RULE]:
            cells, tokens = [], 0
            for kind in kinds:
                tokens, reused, seconds = measure(each, span, layers, kind)
                cells.append(f"{reused:.1%} {seconds / first.setdefault(kind.name, seconds):.2f}")
            table.add_row(f"{each:g}" if each else "as is", str(tokens), *cells)
        print_table(Console(), table)


if __name__ == "__main__":
    typer.run(main)
