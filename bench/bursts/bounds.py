"""The least that a cell's prompts can compute, and the least time that it can take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker.model.timed.timed_model import TimedModel, context_attended

from bench.common.bounds import fewest_seconds
from bench.common.systems import WAVE_TOKENS, stage_cost

TOKEN_BYTES = 4


@dataclass(frozen=True)
class Computed:
    """What some prompts make a pipeline compute: tokens, and the tokens that these attend to, summed up."""

    tokens: int = 0
    context: float = 0.0

    def with_span(self, start: int, end: int) -> Computed:
        return Computed(self.tokens + end - start, self.context + context_attended(start, end - start))


def least_computed(prompts: Sequence[bytes], block_size: int) -> Computed:
    """Every distinct block once, and of every prompt what follows its last full block.

    A prompt computes its last token whether or not its block is known.
    """
    seen: set[int] = set()
    total = Computed()
    for prompt in prompts:
        tokens = len(prompt) // TOKEN_BYTES
        wide = TOKEN_BYTES * block_size
        chain, reused = 0, 0
        for at in range(tokens // block_size):
            chain = hash((chain, prompt[at * wide : (at + 1) * wide]))
            if chain in seen and reused == at < (tokens - 1) // block_size:
                reused = at + 1
            seen.add(chain)
        total = total.with_span(reused * block_size, tokens)
    return total


def bound_seconds(
    model: TimedModel, stages: int, sessions: Sequence[Sequence[bytes]], block_size: int
) -> float:
    """Seconds until the last answer that nothing can beat.

    Either the pipeline computes the union in equal waves without a gap, or some session's prompts are computed alone,
    one after the other.
    """
    union = least_computed([prompt for prompts in sessions for prompt in prompts], block_size)
    alone = [
        sum(_seconds(model, stages, computed) for computed in _turns(prompts, block_size))
        for prompts in sessions
    ]
    return max(_seconds(model, stages, union), *alone)


def _turns(prompts: Sequence[bytes], block_size: int) -> list[Computed]:
    """What each prompt of a session computes that those before it have not."""
    before, turns = Computed(), []
    for count in range(1, len(prompts) + 1):
        now = least_computed(prompts[:count], block_size)
        turns.append(Computed(now.tokens - before.tokens, now.context - before.context))
        before = now
    return turns


def _seconds(model: TimedModel, stages: int, computed: Computed) -> float:
    cost = stage_cost(model, stages)
    work = cost.b * computed.tokens + cost.c * computed.context
    _, hop = model.hop_times(0)
    return fewest_seconds(cost.a, work, -(-computed.tokens // WAVE_TOKENS), stages, hop)
