"""What admitting each of many waiting requests would take: room, and tokens to compute. Pure.

Requests that want the same blocks pay for them together: who is admitted first pins them, or computes them, for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.results import Standing
from wavepp_worker.runtime.admission.in_the_making import common_blocks

TAKES_WEIGHT = 1 / 8
"""What a token of room counts beside a token to compute: among prefixes that are all there, those in use come first,
and no prefix that is there is passed over for one that few want and nobody has."""


class Prompt(Protocol):
    """What is looked at of a waiting request; see ``Waiting``."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def keys(self) -> BlockKeys: ...
    @property
    def reusable(self) -> int: ...


@dataclass(frozen=True)
class Demand:
    """What the admission of a request takes, if those that want the same blocks are admitted as well.

    Attributes:
        takes: tokens of room, a share of what it takes together with others included.
        computes: tokens to compute, likewise.
        shared: tokens of room that it takes together with others.
        alone: tokens of room that it takes if nobody is admitted before it.
        present: blocks that are there, or that an admitted request will compute.
        group: number of the first request that wants the same next block: those run together.
    """

    takes: float
    computes: float
    shared: int
    alone: int
    present: int
    group: int

    def cost(self, prompt_tokens: int) -> float:
        """Per token of the prompt; requests of low cost come first under pressure."""
        return (self.computes + TAKES_WEIGHT * self.takes) / prompt_tokens


@dataclass(frozen=True)
class Place:
    """How far a prompt has got, in blocks: what is present, and of that, what is held; see ``Standing``."""

    present: int
    held: int


def demands(
    prompts: Sequence[Prompt],
    block_size: int,
    standing: Callable[[BlockKeys, int], Standing],
    writer: Callable[[BlockKeys, int, int], tuple[str, int] | None],
) -> list[Demand]:
    """The demand of each prompt, in their order.

    Args:
        standing: what this rank has of the prompt with these keys and so many tokens.
        writer: see ``InTheMaking.writer``.
    """
    places = []
    groups: dict[bytes, list[int]] = {}
    for at, prompt in enumerate(prompts):
        present, held = standing(prompt.keys, prompt.prompt_tokens)
        places.append(Place(present // block_size, held // block_size))
        if places[at].held < prompt.reusable:
            groups.setdefault(prompt.keys[places[at].held], []).append(at)
    found = [_alone(prompt, place, block_size) for prompt, place in zip(prompts, places, strict=True)]
    for members in groups.values():
        first, place = prompts[members[0]], places[members[0]]
        made = writer(first.keys, place.present, first.reusable)
        if len(members) == 1 and made is None:
            continue
        common = [
            common_blocks(
                first.keys, prompts[at].keys, place.held + 1, min(first.reusable, prompts[at].reusable)
            )
            for at in members
        ]
        if made is not None:
            for at, same in zip(members, common, strict=True):
                ahead = Place(max(places[at].present, min(made[1], same)), min(made[1], same))
                found[at] = replace(_alone(prompts[at], ahead, block_size), group=first.number)
            continue
        # The first one shares with the others what most of them do with it.
        common[0] = max(common[1:])
        for at, same in zip(members, common, strict=True):
            found[at] = _together(prompts[at], places[at], same, len(members), first.number, block_size)
    return found


def _alone(prompt: Prompt, place: Place, block_size: int) -> Demand:
    takes = prompt.prompt_tokens - block_size * place.held
    return Demand(
        takes, prompt.prompt_tokens - block_size * place.present, 0, takes, place.present, prompt.number
    )


def _together(prompt: Prompt, place: Place, common: int, sharers: int, group: int, block_size: int) -> Demand:
    alone = _alone(prompt, place, block_size)
    shared, computed = block_size * (common - place.held), block_size * max(0, common - place.present)
    rest = 1 - 1 / sharers
    takes, computes = alone.takes - shared * rest, alone.computes - computed * rest
    return Demand(takes, computes, shared, alone.alone, alone.present, group)
