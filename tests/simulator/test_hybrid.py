"""Where ranks that keep unequal things land: the paper's example, and drawn ones against brute force."""

from __future__ import annotations

import random

import pytest
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.planning.greedy import GreedyPlanner

from tests.simulator.told import Told

KINDS = ("f", "fr", "rf", "r", "fs", "s", "fsr", "")


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_papers_example_is_admitted_at_64(ranks: int) -> None:
    """Snapshots at 64K, 72K and 90K on one rank and at 64K and 80K on another, in thousandths of a token."""
    prompt = [7 * at % 50 for at in range(100)]
    for seed in range(10):
        windows = [
            [WindowSpec("attention", "full", 200), WindowSpec("recurrent", "recurrent", 80, interval=2)]
            for _ in range(ranks)
        ]
        world = Told([(0.0, prompt), (50.0, prompt)], seed, ranks, windows=windows, block=2)
        first, second = random.Random(seed).sample(range(ranks), 2)
        world.evict_at(40.0, first, 1, {at // 2 for at in (64, 72, 90)})
        world.evict_at(40.0, second, 1, {at // 2 for at in (64, 80)})
        world.run()
        assert world.asked("r1") == [80, 72, 64], "the candidate, and what each reconciliation lowers it to"
        assert world.starts("r1")[0] == 64


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_admission_lands_where_trying_all_endpoints_does(ranks: int) -> None:
    lowered = reused = 0
    for seed in range(100):
        draw = random.Random(10 * seed + ranks)
        block = draw.choice((1, 2, 4))
        length = draw.randrange(2 * block, 40)
        prompt = [draw.randrange(50) for _ in range(length)]
        windows = [make_windows(draw, draw.choice(KINDS), block) for _ in range(ranks)]
        world = Told([(0.0, prompt), (50.0, prompt)], seed, ranks, windows=windows, block=block)
        usable = []
        for rank, specs in enumerate(windows):
            for number, spec in enumerate(specs):
                kept = draw_kept(draw, spec, length // block)
                world.evict_at(40.0, rank, number, kept)
                usable.append((spec, kept))
        world.run()
        found, asked = world.starts("r1")[0], world.asked("r1")
        assert found == brute_force(usable, block, length), f"seed {seed}"
        assert asked == sorted(set(asked), reverse=True), "reconciliation only lowers"
        assert asked[-1] == found
        lowered += len(asked) > 1
        reused += found > 0
    assert lowered > 3
    assert reused > 20


def make_windows(draw: random.Random, kinds: str, block: int) -> list[WindowSpec]:
    """Big enough to keep all of a prompt of 40 tokens."""
    made = {
        "f": WindowSpec("full", "full", 90, host_blocks=draw.choice((0, 50))),
        "s": WindowSpec("sliding", "sliding", 90, span=draw.randrange(1, 10)),
        "r": WindowSpec("recurrent", "recurrent", 90, interval=block * draw.choice((1, 1, 2, 3))),
    }
    return [made[kind] for kind in kinds]


def draw_kept(draw: random.Random, spec: WindowSpec, blocks: int) -> set[int]:
    """Which blocks of a prompt one rank keeps: a prefix, or any in windows that need only some."""
    if spec.kind == "full":
        return set(range(1, draw.randrange(blocks // 2, blocks + 1) + 1))
    chance = draw.choice((0.5, 0.8, 1.0))
    return {at for at in range(1, blocks + 1) if draw.random() < chance}


def brute_force(usable: list[tuple[WindowSpec, set[int]]], block: int, length: int) -> int:
    """The last endpoint at which every window of every rank has what it needs."""
    for end in range((length - 1) // block, 0, -1):
        if all(resumable(spec, kept, end, block, length) for spec, kept in usable):
            return end * block
    return 0


def resumable(spec: WindowSpec, kept: set[int], end: int, block: int, length: int) -> bool:
    if spec.kind == "recurrent":
        assert spec.interval is not None
        taken = end * block % spec.interval == 0 or end == (length - 1) // block
        return end in kept and taken and end * block < length
    nearest = end * block - spec.span if spec.kind == "sliding" else 0
    return all(at in kept for at in range(1, end + 1) if at * block > nearest)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_lowering_leaves_alone_what_is_promised_to_others(ranks: int) -> None:
    """Requests that share a prefix of which each rank keeps other snapshots, in pools that are nearly full."""
    lowered = 0
    for seed in range(25):
        world = crowded(seed, ranks)
        world.run()
        lowered += sum(len(world.asked(f"r{index}")) > 1 for index in range(1, 7))
    assert lowered > 50


def crowded(seed: int, ranks: int) -> Told:
    draw = random.Random(seed)
    prompt = [draw.randrange(50) for _ in range(24)]
    tails = [draw.randrange(6, 24) for _ in range(6)]
    later = [prompt[:shared] + [50 + index] * draw.randrange(1, 5) for index, shared in enumerate(tails)]
    windows = [
        [
            WindowSpec("attention", "full", 24 + draw.choice((3, 6, 12, 24)), draw.choice((0, 8))),
            WindowSpec(
                "recurrent",
                "recurrent",
                draw.choice((5, 6, 8, 12)),
                draw.choice((0, 0, 4)),
                interval=draw.choice((1, 1, 2)),
                max_snapshots=draw.choice((1, 2, 4, None)),
            ),
        ]
        for _ in range(ranks)
    ]
    first = [(0.2 * at, prompt[: draw.randrange(2, 24)]) for at in range(6)]
    return Told(
        [*first, *((50.0 + 0.002 * draw.randrange(3), tokens) for tokens in later)],
        seed,
        ranks,
        windows=windows,
        block=1,
        slow={draw.randrange(ranks): draw.choice((1.0, 30.0, 100.0))},
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_cold_burst_computes_what_is_shared_once_though_nobody_takes_a_snapshot_there_by_itself(
    ranks: int,
) -> None:
    """At two places: most leave the prompt of the first at one, some at another; one stays with a reader."""
    for seed in range(20):
        draw = random.Random(seed)
        block = draw.choice((1, 2, 4))
        prefix = [draw.randrange(50) for _ in range(6 * block)]
        middle = [50] * (3 * block)
        ends = [[60 + at] * draw.randrange(1, 2 * block + 1) for at in range(5)]
        prompts = [
            prefix + ends[0],
            *(prefix + middle + end for end in ends[1:4]),
            prefix[: 4 * block] + ends[4],
        ]
        windows = [
            [
                WindowSpec("attention", "full", 200),
                WindowSpec("recurrent", "recurrent", draw.choice((20, 40)), interval=block * 100),
            ]
            for _ in range(ranks)
        ]
        world = Told([(0.0, prompt) for prompt in prompts], seed, ranks, windows=windows, block=block)
        world.plan_with(GreedyPlanner(draw.choice((3 * block, 100))))
        world.run()
        computed = sum(len(prompt) - world.starts(f"r{at}")[0] for at, prompt in enumerate(prompts))
        assert computed == len(prefix) + len(middle) + sum(map(len, ends)), f"seed {seed}"


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_next_turn_of_a_conversation_resumes_where_the_prompt_before_it_ended(ranks: int) -> None:
    for seed in range(10):
        draw = random.Random(seed)
        block = draw.choice((1, 2, 4))
        prompt = [draw.randrange(50) for _ in range(draw.randrange(block, 40))]
        turns, length = [(0.0, list(prompt))], [len(prompt)]
        for turn in range(1, 4):
            prompt += [50 + turn] * draw.randrange(1, 20)
            turns.append((50.0 * turn, list(prompt)))
            length.append(len(prompt))
        windows = [[WindowSpec("recurrent", "recurrent", 40, interval=block * 100)] for _ in range(ranks)]
        world = Told(turns, seed, ranks, windows=windows, block=block)
        world.run()
        starts = [world.starts(f"r{turn}")[0] for turn in range(4)]
        assert starts == [0, *(each // block * block for each in length[:3])], f"seed {seed}"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_who_comes_while_a_prompt_is_computed_has_a_snapshot_taken_where_nobody_expected_one(
    ranks: int,
) -> None:
    """Far enough ahead of what has begun on every rank; where the pool of one is full, all go without."""
    for seed in range(10):
        for scarce in (False, True):
            draw = random.Random(seed)
            prefix = [draw.randrange(50) for _ in range(60)]
            prompts = [(0.0, [*prefix, 60]), *((0.1, [*prefix[:50], 61 + at]) for at in range(2))]
            windows = [
                [
                    WindowSpec("attention", "full", 200),
                    WindowSpec("recurrent", "recurrent", 2 if scarce and not rank else 40, interval=100),
                ]
                for rank in range(ranks)
            ]
            world = Told(prompts, seed, ranks, windows=windows, block=1)
            world.plan_with(GreedyPlanner(1))
            world.run()
            starts = {world.starts(name)[0] for name in ("r1", "r2")}
            assert starts == {0 if scarce else 50}, f"seed {seed}"
