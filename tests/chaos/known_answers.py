"""Prompts whose greedy continuation is certain, as transformers gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.chaos.workload import Case, draw_prompts
from tests.support.reference import Reference

TEXT_TOKENS = 12
CLEAR_LOGITS = 0.02
"""The best token leads the second by at least so much, a hundred times more than the order of sums can change."""


def known_answers(
    model: Path, seed: int, count: int, longest: int, advance: Callable[[], None] = lambda: None
) -> list[Case]:
    """Cases of up to ``longest`` tokens; at most ``count``, as prompts whose answer is close to another are left out.

    Args:
        model: a model that answers a printable character a token.
        advance: called after each prompt.
    """
    reference = Reference(model)
    cases = []
    for prompt in draw_prompts(seed, count, longest):
        tokens = reference.generate(prompt, TEXT_TOKENS)
        best = reference.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :].topk(2).values
        if bool((best[:, 0] - best[:, 1] > CLEAR_LOGITS).all()):
            cases.append(Case(prompt, reference.text(prompt, TEXT_TOKENS)))
        advance()
    return cases
