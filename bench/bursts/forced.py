"""The least time where blocks are computed once and requests wait for one another: a tighter bound than the union's.

Of schedules that compute every block once, two things are known besides. A session asks its next prompt when the last
one is answered; and where some layers are recurrent, who reads a block goes in a later wave than who computes it. Both
force waves: more of them than the union needs by itself, or smaller ones, as an answer takes the whole pipeline its
longest wave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from wavepp_worker.model.timed.timed_model import TimedModel
from wavepp_worker.runtime.planning.wave_cost import WaveCost

from bench.bursts.bounds import TOKEN_BYTES, bound_seconds, least_computed
from bench.common.bounds import MOST_WAVES
from bench.common.systems import WAVE_TOKENS, stage_cost


def forced_seconds(
    model: TimedModel, stages: int, sessions: Sequence[Sequence[bytes]], block_size: int, *, riders: bool
) -> float:
    """Seconds until the last answer that nothing can beat which computes every block once; at least ``bound_seconds``.

    ``riders``: who reads a block may be in the wave that computes it.

    For each number of waves the later of two is the least: until the last stage is done with all of the union, and
    until the average session is done with its turns.
    """
    prompts = [prompt for asked in sessions for prompt in asked]
    cost = stage_cost(model, stages)
    union = least_computed(prompts, block_size)
    work = cost.b * union.tokens + cost.c * union.context
    _, hop = model.hop_times(0)
    hops = (stages - 1) * hop
    least = max(
        -(-union.tokens // WAVE_TOKENS),
        1 if riders else waves_in_a_row([asked[0] for asked in sessions], block_size),
        max(len(asked) for asked in sessions),
    )
    turns = _Turns.of(sessions, cost, block_size, riders=riders)
    seconds = min(
        max((count + stages - 1) * (cost.a + work / count) + hops, turns.seconds(cost, stages, count, hops))
        for count in range(least, least + MOST_WAVES)
    )
    return max(seconds, bound_seconds(model, stages, sessions, block_size))


def waves_in_a_row(prompts: Sequence[bytes], block_size: int) -> int:
    """The longest chain of waves of which each reads what the one before it computes, if the order is the best.

    Of those that part at a block, one may go on in the wave that computes it, the others go in a later one.
    """
    rows = [_shareable(prompt, block_size) for prompt in prompts]
    return max(_chain(group, rows, 1) for group in _by_block(range(len(rows)), rows, 0))


@dataclass(frozen=True)
class _Turns:
    """What all sessions ask one after the other.

    Attributes:
        sessions: how many there are.
        count: turns of all of them.
        work: seconds of a turn's own blocks, which no other session asks for, at least.
        before: seconds of what all sessions begin with, which all but one wait for.
    """

    sessions: int
    count: int
    work: float
    before: float

    @classmethod
    def of(
        cls, sessions: Sequence[Sequence[bytes]], cost: WaveCost, block_size: int, *, riders: bool
    ) -> _Turns:
        first = [_shareable(asked[0], block_size) for asked in sessions]
        shared = 0
        while len(first) > 1 and all(len(row) > shared and row[shared] == first[0][shared] for row in first):
            shared += 1
        everyones = sessions[0][0][: shared * block_size * TOKEN_BYTES]
        begun = least_computed([everyones], block_size) if everyones else None
        before = 0.0 if begun is None else cost.b * begun.tokens + cost.c * begun.context
        if begun is not None and not riders:
            before += cost.a
        asked_by = defaultdict(set)
        for number, asked in enumerate(sessions):
            for prompt in asked:
                for block in _chained(prompt, block_size):
                    asked_by[block].add(number)
        works = []
        for asked in sessions:
            reached = 0
            for prompt in asked:
                row = _chained(prompt, block_size)
                while reached < len(row) and len(asked_by[row[reached]]) > 1:
                    reached += 1
                start, tokens = reached * block_size, len(prompt) // TOKEN_BYTES
                own = max(1, tokens - start)
                works.append(cost.work(tokens - own, own))
                reached = len(row)
        return cls(len(sessions), len(works), min(works), before)

    def seconds(self, cost: WaveCost, stages: int, waves: int, hops: float) -> float:
        """Until the average session is done, where there are so many waves.

        A turn takes ``stages * t`` at least, for any wave of ``t`` seconds that has a part of its own work, so for the
        mean of them by such parts. A wave that has ``x`` turns' worth takes ``a + work * x``, and the sum of the
        squares of ``x`` is least where all waves have the same.
        """
        each = stages * (cost.a + self.work * self.count / waves) + hops
        return self.before * (self.sessions - 1) / self.sessions + each * self.count / self.sessions


def _shareable(prompt: bytes, block_size: int) -> list[int]:
    """A hash of each block that another prompt could reuse: the last token is always computed."""
    return _chained(prompt, block_size)[: (len(prompt) // TOKEN_BYTES - 1) // block_size]


def _chained(prompt: bytes, block_size: int) -> list[int]:
    wide, chain, row = TOKEN_BYTES * block_size, 0, []
    for at in range(len(prompt) // wide):
        chain = hash((chain, prompt[at * wide : (at + 1) * wide]))
        row.append(chain)
    return row


def _by_block(members: Sequence[int], rows: Sequence[Sequence[int]], at: int) -> list[list[int]]:
    """Those with the same block there together; each by itself that ends before."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    ended = []
    for each in members:
        if at < len(rows[each]):
            groups[rows[each][at]].append(each)
        else:
            ended.append([each])
    return [*groups.values(), *ended]


def _chain(members: Sequence[int], rows: Sequence[Sequence[int]], at: int) -> int:
    """Waves in a row of requests that have the first ``at`` blocks in common."""
    if len(members) == 1:
        return 1
    parted = _by_block(members, rows, at)
    while len(parted) == 1:
        at += 1
        parted = _by_block(members, rows, at)
    longest, second = sorted((_chain(group, rows, at + 1) for group in parted), reverse=True)[:2]
    return max(longest, second + 1)
