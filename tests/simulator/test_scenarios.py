"""What broke for others, by its number, over an even and two odd numbers of ranks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.protocol.lane_events import LaneAdmitted
from wavepp_worker.runtime.protocol.waves import Span

from tests.simulator.told import Told
from tests.simulator.world import World

RANKS = pytest.mark.parametrize("ranks", [2, 3, 5])
SEEDS = range(15)


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(50) for _ in range(count)]


def endpoint(world: Told, name: str) -> int:
    """Where a request began to run on every rank."""
    starts = world.starts(name)
    assert starts, f"{name} never ran"
    return starts[0]


@RANKS
def test_s02_s55_one_rank_a_hundred_times_slower_follows_the_schedule_of_the_first(ranks: int) -> None:
    for seed in SEEDS:
        prompts = [(0.001 * index, tokens(seed + index, 6)) for index in range(5)]
        world = Told(prompts, seed, ranks, slow={ranks - 1: 100.0})
        world.run()
        assert len(world.client.answered) == 5


@RANKS
def test_s03_s04_s05_what_one_rank_evicted_is_reused_by_none(ranks: int) -> None:
    """Every rank evicts on its own, some to their host memory; the endpoint is one all the same."""
    lowered = 0
    for seed in range(2 * len(SEEDS)):
        prompt = tokens(seed, 6)
        world = Told([(0.0, prompt), (50.0, prompt)], seed, ranks)
        capacity = world.ranks[-1].parts.cache.use().capacity * world.block_size
        world.take_room_at(40.0, ranks - 1, "noise", capacity, until=41.0)
        world.run()
        assert len(world.client.answered) == 2
        lowered += endpoint(world, "r1") == 0
    assert lowered > 6


@RANKS
@pytest.mark.parametrize(("host", "reused"), [(6, 5), (0, 0)])
def test_s45_what_one_rank_alone_offloaded_is_reused_by_all_and_what_it_lost_by_none(
    ranks: int, host: int, reused: int
) -> None:
    """The device of one rank is short of room, the others still have the prompt on theirs."""
    windows = [[WindowSpec("attention", "full", 40)] for _ in range(ranks - 1)]
    windows.append([WindowSpec("attention", "full", 8, host)])
    for seed in SEEDS:
        prompt = tokens(seed, 6)
        world = Told([(0.0, prompt), (50.0, prompt)], seed, ranks, windows=windows, block=1)
        world.take_room_at(40.0, ranks - 1, "noise", 8, until=41.0)
        world.run()
        assert endpoint(world, "r1") == reused


@RANKS
def test_s06_s18_a_rank_without_room_makes_all_let_go_and_try_again(ranks: int) -> None:
    for seed in SEEDS:
        world = Told([(0.5, tokens(seed, 6))], seed, ranks)
        capacity = world.ranks[1].parts.cache.use().capacity * world.block_size
        world.take_room_at(0.0, 1, "noise", capacity, until=3.0)
        world.run()
        assert world.client.answered[0] > 3.0, "it ran although one rank had no room"


@RANKS
def test_s07_s10_every_round_is_entered_by_every_rank(ranks: int) -> None:
    for seed in range(30_000, 30_040):
        world = World(seed, ranks=ranks)
        world.run()
        assert len({rank.parts.reports.rounds for rank in world.ranks}) == 1


class Jitter(GreedyPlanner):
    """Plans otherwise each time it is asked the same."""

    def __init__(self, seed: int) -> None:
        super().__init__(1)
        self._draw = random.Random(seed)

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        return GreedyPlanner(self._draw.randrange(1, 9)).propose(view)


@RANKS
def test_s12_s13_s14_all_ranks_run_what_rank_0_planned_however_it_did(ranks: int) -> None:
    """Nothing of a plan is worked out again by the others, whose pools and progress differ."""
    for seed in SEEDS:
        prompts = [(0.01 * index, tokens(seed + index % 2, 6)) for index in range(6)]
        world = Told(prompts, seed, ranks, slow={1: 20.0})
        world.plan_with(Jitter(seed))
        world.run()
        lists = [[(wave, spans) for at, wave, spans in world.waves() if at == rank] for rank in range(ranks)]
        assert lists[0]
        assert all(waves == lists[0] for waves in lists)


@RANKS
def test_s16_stages_of_recurrent_layers_of_attention_and_of_neither(ranks: int) -> None:
    """Each computes other points at which it can resume; the request resumes at one that all have."""
    stages = [
        [WindowSpec("every 4", "recurrent", 20, interval=4)],
        [WindowSpec("attention", "full", 40)],
        [],
        [WindowSpec("every 6", "recurrent", 20, interval=6), WindowSpec("near", "sliding", 40, span=5)],
        [WindowSpec("stateless", "full", 40), WindowSpec("every 2", "recurrent", 20, interval=2)],
    ]
    for seed in SEEDS:
        prompt = tokens(seed, 30)
        # It parts from the first where nobody expected it to.
        other = [*prompt[:26], 51, 51]
        windows = [stages[(seed + at) % 5] for at in range(ranks)]
        world = Told([(0.0, prompt), (50.0, other)], seed, ranks, windows=windows, block=2)
        world.run()
        steps = [spec.interval for specs in windows for spec in specs if spec.interval is not None]
        common = [end for end in range(0, 28, 2) if all(end % step == 0 for step in steps)]
        assert endpoint(world, "r1") == common[-1]


@RANKS
def test_s20_a_request_that_fits_only_alone_does_not_block_those_behind_it_for_ever(ranks: int) -> None:
    for seed in SEEDS:
        world = Told(
            [(0.0, tokens(seed, 3)), (0.0, tokens(seed + 1, 6)), (0.0, tokens(seed + 2, 2))], seed, ranks
        )
        world.run()
        assert len(world.client.answered) == 3


@RANKS
def test_s25_s26_s34_cancelled_at_every_instant_leaves_every_table_empty(ranks: int) -> None:
    """Also when nothing else is scheduled; ``run`` audits every rank at the end."""
    for step in range(60):
        world = Told([(0.0, tokens(step, 6))], 7, ranks, slow={0: 2.0})
        world.abort_at(1e-6 + 0.0015 * step, "r0")
        world.abort_at(1e-6 + 0.0015 * step, "unknown")
        world.run()


@RANKS
def test_s11_s47_rounds_go_on_while_every_executor_stalls(ranks: int) -> None:
    """Requests that arrive during a stall are admitted before it ends."""
    for seed in SEEDS:
        prompts = [(0.0, tokens(seed, 6)), (1.0, tokens(seed + 1, 6))]
        world = Told(prompts, seed, ranks, spare=40, slow=dict.fromkeys(range(ranks), 500.0))
        seen: list[float] = []
        hears = world._loop_hears

        def noted(message: object, hears=hears, world=world, seen=seen) -> None:  # type: ignore[no-untyped-def]
            if isinstance(message, LaneAdmitted):
                seen.append(world.now)
            hears(message)

        world._loop_hears = noted  # type: ignore[method-assign]
        world.run()
        if world.queue.limit > 1:
            assert seen[1] < 1.5, f"seed {seed}: admitted at {seen[1]} during a stall of 5 s"


@RANKS
def test_s48_a_slow_receiver_holds_up_nobody_before_the_ring_is_full(ranks: int) -> None:
    """Its senders go on, and what waits for it is bounded."""
    full = 0
    for seed in SEEDS:
        prompts = [(0.0, tokens(seed + index, 6)) for index in range(8)]
        world = Told(prompts, seed, ranks, spare=60, slow={ranks - 1: 300.0})
        world.run()
        begun: Counter[int] = Counter()
        ahead = 0
        for rank, _, _ in world.waves():
            begun[rank] += 1
            ahead = max(ahead, begun[0] - begun[ranks - 1])
        assert ahead <= 2 * ranks
        full += ahead >= min(2 * ranks - 1, begun[0] - 1)
    assert full > len(SEEDS) // 2


@RANKS
def test_s49_s50_waves_and_completions_pass_each_other(ranks: int) -> None:
    """A full ring in flight both ways, with messages much slower than the waves."""
    for seed in SEEDS:
        prompts = [(0.0, tokens(seed + index, 6)) for index in range(6)]
        world = Told(prompts, seed, ranks, spare=60)
        world._delay = 0.2
        world.run()
        assert len(world.client.answered) == 6


def test_an_abort_that_comes_before_its_request_is_of_nothing() -> None:
    for seed in SEEDS:
        world = Told([(0.0, tokens(seed, 6)), (0.02, tokens(seed, 4))], seed, 2)
        world.abort_at(0.01, "r1")
        world.run()
        assert len(world.client.answered) == 2
