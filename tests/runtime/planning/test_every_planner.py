"""What must hold of every planner, for any traffic; and how long a plan may take."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.mpu_paper import PaperMpu
from wavepp_worker.runtime.planning.planner import LONGEST_HOLD_SECONDS, Lane, PipelineView, Planner
from wavepp_worker.runtime.planning.throttle import ThrottlePlanner
from wavepp_worker.runtime.planning.two_budget import TwoBudgetMpu
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import BLOCK_SIZE

PLANNERS: dict[str, Callable[[], Planner]] = {
    "greedy": lambda: GreedyPlanner(128),
    "throttle": lambda: ThrottlePlanner(
        waves=4,
        max_num_batched_tokens=128,
        min_num_batched_tokens=32,
        block_size=BLOCK_SIZE,
        max_num_seqs=6,
    ),
    "two-budget": lambda: TwoBudgetMpu(
        stages=2, max_num_batched_tokens=128, block_size=BLOCK_SIZE, max_num_seqs=6
    ),
    "mpu-paper": lambda: PaperMpu(P=2, M=128, b_min=32, B=BLOCK_SIZE, max_num_seqs=6),
    "mpu": lambda: Mpu(
        stages=2,
        max_num_batched_tokens=128,
        min_num_batched_tokens=32,
        block_size=BLOCK_SIZE,
        cost=WaveCost(a=4.0, b=1.0, c=0.001),
        max_num_seqs=6,
    ),
}
"""Each for two stages, waves of 128 tokens and six lanes."""
LARGE: dict[str, Callable[[], Planner]] = {
    "mpu-paper": lambda: PaperMpu(P=8, M=16384, b_min=8192, B=64),
    "mpu": lambda: Mpu(
        stages=8,
        max_num_batched_tokens=16384,
        min_num_batched_tokens=512,
        block_size=64,
        cost=WaveCost(0.008, 18e-6, 1.35e-10),
    ),
    "two-budget": lambda: TwoBudgetMpu(stages=8, max_num_batched_tokens=16384, block_size=64),
    "throttle": lambda: ThrottlePlanner(
        waves=16, max_num_batched_tokens=16384, min_num_batched_tokens=1024, block_size=64
    ),
}
"""Each for eight stages, waves of 16,384 tokens and 128 lanes."""


@settings(max_examples=60, deadline=None)
@example(
    name="mpu", seed=2442, longest=1000, refusals=False
)  # two are overdue at once, the younger one is shorter
@given(
    name=st.sampled_from(sorted(PLANNERS)),
    seed=st.integers(0, 10_000),
    longest=st.sampled_from([20, 100, 1000]),
    refusals=st.booleans(),
)
def test_s14_any_traffic_is_scheduled_once_in_order_and_alike_for_equal_inputs(
    name: str, seed: int, longest: int, refusals: bool
) -> None:
    rng = random.Random(seed)
    planner, twin = PLANNERS[name](), PLANNERS[name]()
    waiting: list[Lane] = []
    flight: list[tuple[Span, ...]] = []
    position: dict[str, int] = {}
    passed: dict[str, int] = {}
    to_come, decisions, held = 25, 0, 0.0
    while to_come or waiting or flight:
        decisions += 1
        assert decisions < 20_000, "nothing moves"
        if to_come and rng.random() < 0.4:
            to_come -= 1
            start = rng.randrange(200)
            lane = Lane(f"r{to_come}", start, start + rng.randrange(1, longest))
            waiting.append(lane)
            position[lane.request_id] = start
        if flight and (len(flight) == 4 or rng.random() < 0.4):
            flight.pop(0)
        if rng.random() < 0.02 and waiting:
            waiting.remove(rng.choice(waiting))
        view = PipelineView(tuple(waiting), tuple(flight), admitting=min(to_come, 1), held=held)
        spans = planner.propose(view)
        assert spans == twin.propose(view), "same inputs, another plan"
        if not spans:
            held = 0.0 if flight or not waiting else held + 0.001
            assert held <= LONGEST_HOLD_SECONDS, "waits although the pipeline is idle"
            continue
        held = 0.0
        if isinstance(planner, PaperMpu):
            assert planner.budget in planner.ladder
        if isinstance(planner, Mpu):
            assert 32 <= planner.budget <= 128
        proposed, filling = sum(span.length for span in spans), spans[-1]
        assert proposed <= 128
        if refusals and rng.random() < 0.2:
            spans = spans[: rng.randrange(1, len(spans) + 1)]
        order = [lane.request_id for lane in waiting]
        assert len({span.request_id for span in spans}) == len(spans)
        for span in spans:
            lane = waiting[order.index(span.request_id)]
            assert span.start == position[span.request_id], "overlaps or skips"
            assert span.last == (span.start + span.length == lane.end)
            whole = (span.start + span.length) % BLOCK_SIZE == 0
            full = name == "mpu" and span == filling and proposed % BLOCK_SIZE == 0
            assert name == "greedy" or span.last or whole or full
            position[span.request_id] += span.length
        carried = {span.request_id for span in spans}
        youngest = max(order.index(request_id) for request_id in carried)
        for request_id in order[:youngest]:
            passed[request_id] = 0 if request_id in carried else passed.get(request_id, 0) + 1
            # A refused span may be the overdue one; otherwise no lane is passed over more than D = R = 4 times.
            assert refusals or passed[request_id] <= 4
        for request_id in carried:
            passed[request_id] = 0
        flight.append(spans)
        twin.accept(PipelineView(tuple(Lane(x.request_id, x.next, x.end) for x in waiting)), spans)
        planner.accept(view, spans)
        waiting = [lane for lane in waiting if lane.left]


@pytest.mark.parametrize("name", sorted(LARGE))
def test_planning_128_lanes_takes_under_200_microseconds(name: str) -> None:
    planner = LARGE[name]()
    waiting = tuple(Lane(f"r{i}", 125_000, 129_096) for i in range(128))
    flight = tuple(tuple(Span(f"f{w}.{i}", 125_000, 4096, True) for i in range(4)) for w in range(16))
    view, took = PipelineView(waiting, flight), []
    for _ in range(50):
        begun = time.perf_counter()
        planner.propose(view)
        took.append(time.perf_counter() - begun)
    assert min(took) < 200e-6, f"{min(took) * 1e6:.0f} us"


POWERS = st.sampled_from([1e-30, 1e-12, 1e-3, 1.0, 1e9, 1e30])
COSTS = st.builds(WaveCost, a=st.just(0.0) | POWERS, b=POWERS, c=st.just(0.0) | POWERS)
CONTEXT = 1_000_000
"""Tokens of the longest prompt that is planned for here."""


@st.composite
def extreme_planners(draw: st.DrawFn) -> Planner:
    """Any planner that a configuration may ask for, from one token a wave up."""
    block = draw(st.sampled_from([1, 16, 64]))
    most = draw(st.sampled_from([1, 2, 64, 256])) * block
    stages, seqs = draw(st.sampled_from([1, 2, 3, 64])), draw(st.sampled_from([1, 2, 128]))
    least = min(most, draw(st.sampled_from([1, 2, 64])) * block)
    match draw(st.sampled_from(["mpu", "mpu", "learned", "mpu-paper", "two-budget", "throttle", "greedy"])):
        case "mpu" | "learned" as name:
            return Mpu(
                stages=stages,
                max_num_batched_tokens=most,
                min_num_batched_tokens=least,
                block_size=block,
                cost=draw(COSTS) if name == "mpu" else None,
                max_num_seqs=seqs,
            )
        case "mpu-paper":
            return PaperMpu(P=stages, M=most, b_min=least, B=block, max_num_seqs=seqs)
        case "two-budget":
            return TwoBudgetMpu(
                stages=stages, max_num_batched_tokens=most, block_size=block, max_num_seqs=seqs
            )
        case "throttle":
            return ThrottlePlanner(
                waves=2 * stages,
                max_num_batched_tokens=most,
                min_num_batched_tokens=least,
                block_size=block,
                max_num_seqs=seqs,
            )
    return GreedyPlanner(most)


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[int, int]]:
    """First and last token of what is left of each prompt: much or little, at the start or a deep context."""
    tokens = st.sampled_from([1, 2, 5, 17, 100, 4096])
    starts = st.sampled_from([0, 7, CONTEXT // 2, CONTEXT - 4096])
    kinds = draw(st.lists(st.tuples(starts, tokens, st.sampled_from([1, 2, 40])), min_size=1, max_size=4))
    if draw(st.booleans()):
        # What costs a planner most thought: few tokens, of which the first cost next to nothing and others much.
        kinds = [(0, 1, 1), (CONTEXT - 4096, draw(st.integers(1, 40)), 1)]
    return [(start, start + left) for start, left, times in kinds for _ in range(times)]


@settings(max_examples=400, deadline=None)
@given(
    planner=extreme_planners(),
    prompts=prompts(),
    seconds=st.sampled_from([0.0, 1e-300, 1e-9, 1e-3, 1e9, math.inf]),
)
def test_extreme_costs_budgets_and_contexts_are_planned_for(
    planner: Planner, prompts: list[tuple[int, int]], seconds: float
) -> None:
    """Every wave of an idle pipeline has work in it, of lanes that it was shown, and no more than they have."""
    waiting = [Lane(f"r{i}", *ends) for i, ends in enumerate(prompts)]
    flight: list[tuple[Span, ...]] = []
    for _ in range(50):
        if not waiting:
            break
        view = PipelineView(tuple(waiting), tuple(flight))
        spans = planner.propose(view)
        assert spans or flight, "waits although the pipeline is idle"
        if spans:
            planner.accept(view, spans)
            flight.append(spans)
        if not spans or len(flight) == 4:
            planner.observe(flight.pop(0), seconds)
        waiting = [lane for lane in waiting if lane.left]
