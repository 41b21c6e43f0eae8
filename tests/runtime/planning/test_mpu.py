"""Every rule of our planner on numbers worked by hand, in blocks of 16 tokens and mostly at 1 second a token."""

from __future__ import annotations

import statistics

import pytest
from wavepp_worker.errors import ConfigError
from wavepp_worker.runtime.planning.demand import WINDOW_WAVES
from wavepp_worker.runtime.planning.gathering import FIRST_PAUSE_WAVES
from wavepp_worker.runtime.planning.mpu import Mpu
from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.planning.wave_cost import WaveCost
from wavepp_worker.runtime.protocol.waves import Span

from tests.support.planning import BLOCK_SIZE, lanes, plan, shape


def mpu(stages: int, tokens: int, cost: WaveCost, least: int = BLOCK_SIZE) -> Mpu:
    """For waves of at most so many ``tokens``; it has seen somebody ask again."""
    planner = fresh(stages, tokens, cost, least)
    planner._demand.burst = False
    return planner


def fresh(stages: int, tokens: int, cost: WaveCost, least: int = BLOCK_SIZE) -> Mpu:
    """One that has seen nothing."""
    return Mpu(
        stages=stages,
        max_num_batched_tokens=tokens,
        min_num_batched_tokens=least,
        block_size=BLOCK_SIZE,
        cost=cost,
    )


@pytest.mark.parametrize(("tokens", "least"), [(32, 64), (64, 8), (60, 16), (64, 24)])
def test_budgets_that_are_no_blocks_are_refused(tokens: int, least: int) -> None:
    with pytest.raises(ConfigError, match=r"^m(in|ax)_num_batched_tokens: "):
        mpu(2, tokens, WaveCost(a=4.0, b=1.0, c=0.001), least)


def test_a_request_alone_is_cut_into_the_number_of_waves_that_ends_first() -> None:
    cost = WaveCost(a=4.0, b=1.0, c=0.0)
    planner = mpu(5, 1024, cost)
    # Waves of sqrt(a * u / Q) = sqrt(4 * 1600 / 4) = 40 seconds: 40 of them, rounded up to blocks.
    (lane,) = lanes(1600)
    lengths = []
    while lane.left:
        (span,) = plan(planner, [lane])
        lengths.append(span.length)
    assert lengths == [48] * 32 + [32, 32], "what is left of a request does not make its waves shorter"


def test_a_request_alone_is_not_cut_finer_than_the_wave_it_would_wait_behind() -> None:
    def cut(slack: float) -> int:
        planner = mpu(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0))
        ahead = ((Span("f", 0, 160, True),),)
        (span,) = planner.propose(PipelineView(lanes(1600), ahead, slack=slack))
        return span.length

    assert cut(slack=100.0) == 160
    assert cut(slack=0.0) == 48, "the first stage is idle: the wave ahead is further on"


def test_a_request_id_may_come_again_with_another_prompt() -> None:
    planner = mpu(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0))
    assert shape(plan(planner, [Lane("r", 800, 816)])) == [("r", 800, 16)]
    assert shape(plan(planner, [Lane("r", 0, 400)])) == [("r", 0, 32)], "as for any request of 400"
    assert shape(plan(mpu(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0)), [Lane("s", 0, 400)])) == [("s", 0, 32)]


def test_a_request_is_cut_evenly() -> None:
    planner = mpu(2, 64, WaveCost(43.0, 1.0, 0.0))
    (lane,) = lanes(96)
    assert [plan(planner, [lane])[0].length for _ in range(2)] == [48, 48], "not 64 and 32"
    waiting = lanes(96, 4000)
    waves = [[span.length for span in plan(planner, waiting)] for _ in range(2)]
    assert waves == [[64], [32, 32]], "with others to fill the second wave, the first can be full"


def test_a_wave_that_takes_all_there_is_waits_until_the_device_is_about_to_run_dry() -> None:
    planner = mpu(2, 1024, WaveCost(0.0, 1.0, 0.0))
    flight = ((Span("f0", 0, 64, True),), (Span("f1", 0, 64, True),))

    def proposed(*left: int, slack: float) -> int:
        return len(planner.propose(PipelineView(lanes(*left), flight, slack=slack)))

    assert proposed(16, slack=0.1) == 0, "72 seconds would make a wave, more may come meanwhile"
    assert proposed(16, slack=0.004) == 1
    assert proposed(16, slack=0.0) == 1, "an idle device waits for nothing"
    assert proposed(128, slack=0.1) == 1, "a whole wave"
    assert proposed(16, 16, 256, slack=0.1) > 1, "what others left is filled, so there is nothing to wait for"


def test_a_request_is_not_cut_because_one_that_was_just_answered_is_missing() -> None:
    planner = mpu(4, 1024, WaveCost(1.0, 1.0, 0.0))
    flight = tuple((Span(f"f{i}", 0, 160, True),) for i in range(3))

    def cut(others: int) -> bool:
        view = PipelineView(lanes(160), flight[:others])
        (span,) = spans = planner.propose(view)
        planner.accept(view, spans)
        return span.length < 160

    for _ in range(WINDOW_WAVES + 1):
        assert not cut(others=3), "four waves for four stages"
    for _ in range(WINDOW_WAVES):
        assert not cut(others=2), "the fourth may be about to ask again"
    assert cut(others=2), "a window later: three requests for four stages"


@pytest.mark.parametrize(("stages", "cut"), [(4, False), (5, True)])
def test_a_wave_is_stretched_rather_than_a_request_cut_if_all_stages_have_one(stages: int, cut: bool) -> None:
    """Three of 120 in flight supply waves of 120, or of 90 where there are five stages; 150 are at most 1.3 of 120."""
    planner = mpu(stages, 1024, WaveCost(1.0, 1.0, 0.0))
    flight = tuple((Span(f"f{i}", 0, 120, True),) for i in range(3))
    for number in range(WINDOW_WAVES + 1):
        spans = plan(planner, [Lane(f"r{number}", 0, 150)], flight)
    assert (spans[0].length < 150) == cut


def test_what_those_compute_that_wait_to_be_admitted_counts() -> None:
    def wave(tokens: int) -> list[tuple[str, int, int]]:
        planner = mpu(5, 512, WaveCost(a=4.0, b=1.0, c=0.0))
        view = PipelineView(lanes(320, 320), admitting=2, admitting_tokens=tokens)
        return shape(planner.propose(view))

    assert wave(0) == [("r0", 0, 80)], "320 of the other, over four stages behind the first"
    assert wave(640) == [("r0", 0, 240)], "960 of the others"
    assert wave(6400) == [("r0", 0, 320)], "full waves for all stages, and all requests take as many"


def test_who_was_left_behind_goes_before_newcomers_unless_all_fit() -> None:
    """Four requests for waves of three: the fourth goes alone, and the three that come back again go together."""
    planner = mpu(4, 64, WaveCost(1.0, 1.0, 0.0))
    flight = tuple((Span(f"f{i}", 0, 55, True),) for i in range(3))

    def launched(*waiting: Lane) -> list[str]:
        view = PipelineView(waiting, flight, held=1.0)
        spans = planner.propose(view)
        planner.accept(view, spans)
        return [span.request_id for span in spans]

    a, b, c, d, e, f, g, h = (Lane(name, 0, 20) for name in "abcdefgh")
    assert launched(a, b, c, d) == ["a", "b", "c"]
    assert launched(d, e, f, g) == ["d"]
    assert launched(e, f, g, h) == ["e", "f", "g"]
    assert launched(h, Lane("i", 0, 20)) == ["h", "i"], "both fit"


def test_who_was_left_behind_shares_with_newcomers_if_each_stage_has_a_wave() -> None:
    planner = mpu(4, 64, WaveCost(1.0, 1.0, 0.0))
    flight = tuple((Span(f"f{i}", 0, 40, True),) for i in range(4))
    a, b, c, d, e, f = (Lane(name, 0, 20) for name in "abcdef")
    assert [span.request_id for span in plan(planner, (a, b, c, d), flight[:3])] == ["a", "b"]
    assert [span.request_id for span in plan(planner, (c, d, e, f), flight)] == ["c", "d", "e"]


def test_a_single_stage_holds_half_of_its_clients_for_the_other_half_and_again_some_waves_after_a_miss() -> (
    None
):
    planner = mpu(1, 1024, WaveCost(0.02, 0.001, 0.0))
    flight = (tuple(Span(f"f{i}", 0, 100, True) for i in range(4)),)

    def launches(held: float, slack: float = 0.0) -> bool:
        view = PipelineView(lanes(100, 100, 100, 100), flight, slack=slack, held=held)
        spans = planner.propose(view)
        if spans:
            planner.accept(view, spans)
        return bool(spans)

    assert not launches(held=0.0, slack=1.0), "whoever comes before the device runs dry may share the wave"
    assert [launches(held) for held in (0.0, 0.019, 0.02)] == [False, False, True]
    assert all(launches(held=0.0) for _ in range(FIRST_PAUSE_WAVES - 1))
    assert not launches(held=0.0)


def test_nobody_passes_who_would_end_a_wave_sooner_for_what_is_left() -> None:
    planner = mpu(2, 128, WaveCost(1.0, 1.0, 0.0))
    spans = plan(planner, lanes(96, 656, 24, 640))
    assert shape(spans) == [("r0", 0, 96), ("r1", 0, 32)], "656 take 6 waves, after 32 of them 5"


def test_nobody_passes_where_a_steady_load_fills_the_waves() -> None:
    planner = mpu(2, 128, WaveCost(1.0, 1.0, 0.0))
    for number in range(WINDOW_WAVES):
        plan(planner, [Lane(f"w{number}.{i}", 0, 640) for i in range(4)])
    assert shape(plan(planner, lanes(96, 640, 24, 640))) == [("r0", 0, 96), ("r1", 0, 32)]


def test_a_steady_load_that_does_not_fill_the_waves_lets_others_pass() -> None:
    planner = mpu(4, 1024, WaveCost(1.0, 1.0, 0.0))
    waiting = (("a", 96), ("b", 200), ("c", 24), ("d", 160))
    for number in range(WINDOW_WAVES + 1):
        spans = plan(planner, [Lane(f"{number}{name}", 0, left) for name, left in waiting])
    assert [(span.request_id[-1], span.length) for span in spans] == [("a", 96), ("c", 24)], "120 of 480 / 4"


def test_waves_are_sized_so_that_all_requests_take_as_many() -> None:
    def wave(left: int, a: float) -> int:
        planner = mpu(2, 1024, WaveCost(a, 1.0, 0.0))
        return sum(span.length for span in plan(planner, lanes(*[left] * 12)))

    # 12 * 720 tokens are 8.44 waves of 1024 and 9 of 960, which cost 9 / 8.44 - 1 = 6.7 % of a / (a + 1024) more.
    assert wave(720, a=8.0) == 960
    assert wave(720, a=256.0) == 1024, "1.3 % of the throughput is too much"
    assert wave(683, a=8.0) == 1024, "8.004 waves: few requests take a ninth"


def test_a_full_wave_is_filled_to_its_last_token() -> None:
    """Otherwise each wave would end some tokens further within a request than the one before."""
    planner = mpu(2, 64, WaveCost(1.0, 1.0, 0.0))
    waiting = lanes(*[40] * 20)
    assert [span.length for span in plan(planner, waiting)] == [40, 24]
    waiting = waiting[1:]
    assert [span.length for span in plan(planner, waiting)] == [16, 40], "8 are less than a block"


def test_equal_time_means_fewer_tokens_at_longer_context() -> None:
    planner = mpu(2, 1024, WaveCost(50.0, 1.0, 0.01))
    lane = Lane("r", 0, 4096)
    lengths = []
    while lane.left:
        (span,) = plan(planner, [lane])
        lengths.append(span.length)
    times = [WaveCost(50.0, 1.0, 0.01).work(sum(lengths[:i]), n) for i, n in enumerate(lengths)]
    assert lengths[0] > 2 * lengths[-2]
    assert max(times) < 1.5 * statistics.median(times)


def test_small_requests_spread_over_the_stages_before_they_share_waves() -> None:
    """Twelve requests of one block: four waves for four stages."""
    assert len(plan(mpu(4, 1024, WaveCost(0.0, 1.0, 0.0)), lanes(*[16] * 12))) == 3
    assert len(plan(mpu(4, 1024, WaveCost(0.0, 1.0, 0.0)), lanes(*[16] * 4))) == 1


def test_a_few_tokens_at_a_deep_context_that_are_worth_a_full_wave_are_planned_for() -> None:
    """36 tokens are 4 % of none of 1024 tokens, though they take as long as several: all fit into one."""
    for a in (0.0, 4.0, 1e9):
        planner = mpu(2, 1024, WaveCost(a, 1.0, 0.1))
        waiting = (Lane("head", 0, 16), *(Lane(f"r{i}", 1_000_000, 1_000_004) for i in range(5)))
        assert shape(plan(planner, waiting))[0] == ("head", 0, 16)


def test_who_was_passed_goes_first_though_its_context_makes_a_block_of_it_longer_than_the_wave() -> None:
    """The pool is full and the pipeline is empty: a wave of nothing would be the end of everything."""
    planner = mpu(2, 16, WaveCost(a=0.0, b=1.0, c=0.01))
    older, deep, younger = lanes(90, 90, 90), (Lane("deep", 160, 400),), (Lane("younger", 0, 400),)
    view = PipelineView((*older, *deep, *younger))
    planner.propose(view)
    for _ in range(4):
        planner.accept(view, tuple(lane.span(16) for lane in (*older, *younger)))
    # The oldest are enough for waves of 16 * (1 + 0.01 * (90 + 16)) = 33 seconds; a block at token 160 takes 43.
    assert shape(planner.propose(view)) == [("deep", 160, 16)]


def test_short_requests_pass_a_long_one_in_an_open_loop() -> None:
    """Not under a steady load: the one request more after an answer is what tells."""
    planner = mpu(2, 128, WaveCost(1.0, 1.0, 0.0))
    for number, count in enumerate((2, 3)):
        plan(planner, [Lane(f"a{number}.{i}", 0, 16) for i in range(count)])
    spans = plan(planner, lanes(96, 640, 20, 640))
    assert spans[0].request_id == "r2", "3 % of the time of the second are 23 seconds"


def test_a_burst_is_cut_into_waves_for_all_of_its_work_until_somebody_asks_again() -> None:
    planner, flight = fresh(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0)), (Span("r0", 0, 16, True),)
    waiting = lanes(16, *[1600] * 10)

    def tokens(*lanes: Lane, in_flight: tuple[tuple[Span, ...], ...] = ()) -> int:
        return sum(span.length for span in planner.propose(PipelineView(lanes, in_flight)))

    assert tokens(*waiting) == 128, "sqrt(4 * 16016 / 4) = 127 seconds, in whole blocks"
    planner.accept(PipelineView(waiting), flight)
    assert tokens(*waiting[1:], in_flight=(flight,)) == 128
    assert tokens(*waiting[1:]) == 128, "one is answered, and does not ask again"
    assert tokens(*waiting[1:], Lane("r11", 0, 1600)) > 900, "a steady load fills the waves"


def test_a_request_alone_that_others_read_from_is_cut_as_their_burst() -> None:
    planner, readers = fresh(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0)), lanes(*[1000] * 5)
    (span,) = planner.propose(PipelineView((Lane("writer", 0, 1400),), behind=readers))
    assert span.length == 80, "sqrt(4 * 6400 / 4)"


def test_a_burst_waits_for_those_who_are_being_admitted_as_long_as_that_costs_nothing() -> None:
    cost = WaveCost(a=4.0, b=1.0, c=0.0)

    def proposes(planner: Mpu, slack: float, admitting: int) -> bool:
        ahead = ((Span("f", 0, 160, True),),)
        return bool(planner.propose(PipelineView(lanes(1600), ahead, admitting, slack=slack)))

    assert not proposes(fresh(5, 1024, cost), slack=1.0, admitting=3)
    assert proposes(fresh(5, 1024, cost), slack=0.004, admitting=3), "the device is about to run dry"
    assert proposes(fresh(5, 1024, cost), slack=1.0, admitting=0)
    assert proposes(mpu(5, 1024, cost), slack=1.0, admitting=3), "a steady load"


def test_an_idle_pipeline_holds_a_burst_for_those_being_admitted_for_a_part_of_what_one_wave_more_would_cost() -> (
    None
):
    def proposes(held: float, admitting: int = 3, a: float = 0.008, stages: int = 5) -> bool:
        planner = fresh(stages, 1024, WaveCost(a=a, b=0.002, c=0.0))
        return bool(planner.propose(PipelineView(lanes(1600), (), admitting, held=held)))

    assert [proposes(held) for held in (0.0, 0.0019, 0.002)] == [False, False, True]
    assert [proposes(held, a=8.0) for held in (0.0049, 0.005)] == [False, True], "no longer than planners may"
    assert proposes(0.0, admitting=0)
    assert not proposes(0.0, stages=1)


def test_a_single_stage_is_held_likewise_whatever_the_load_as_it_takes_all_there_is_in_one_wave() -> None:
    for stages, held in ((1, True), (5, False)):
        planner = mpu(stages, 1024, WaveCost(a=0.008, b=0.002, c=0.0))
        assert held is not bool(planner.propose(PipelineView(lanes(1600), (), 3, held=0.0)))
        assert planner.propose(PipelineView(lanes(1600), (), 3, held=0.002))


@pytest.mark.parametrize(("clients", "carried"), [(8, 2), (7, 1)])
def test_a_wave_that_would_cut_a_request_takes_it_whole_if_enough_are_left_for_the_other_stages(
    clients: int, carried: int
) -> None:
    """Requests for 1.75 a wave, as one of eight is missing: two a wave keep four stages busy, if there are eight."""
    planner = mpu(4, 1024, WaveCost(16.0, 1.0, 0.0))
    flight = tuple((Span(f"f{i}", 0, 96, True),) for i in range(4))
    plan(planner, [Lane(name, 0, 96) for name in "uvwx"[: clients - 4]], flight)
    spans = plan(planner, [Lane(name, 0, 96) for name in "abc"], flight)
    assert len(spans) == carried


def test_the_next_burst_is_sized_by_its_own_work() -> None:
    planner = fresh(5, 1024, WaveCost(a=4.0, b=1.0, c=0.0))
    for before in ("a", "asks again"):
        lane = Lane(before, 0, 8000)
        planner.propose(PipelineView((lane,)))
        planner.accept(PipelineView((lane,)), [lane.span(8000)])
    planner.propose(PipelineView(()))
    (span,) = planner.propose(PipelineView(lanes(800, 800)))
    assert span.length == 48, "sqrt(4 * 1600 / 4) = 40 seconds, in whole blocks"


@pytest.mark.parametrize("steady", [False, True], ids=["burst", "steady load"])
def test_a_single_stage_takes_a_writer_and_all_who_read_from_it_in_one_wave(steady: bool) -> None:
    planner = (mpu if steady else fresh)(1, 1024, WaveCost(a=40.0, b=1.0, c=0.0))
    readers = [Lane(f"reader{i}", 96, 116) for i in range(4)]
    riding = {lane.request_id: "writer" for lane in readers}
    view = PipelineView((Lane("writer", 0, 100),), behind=readers, riding=riding)
    spans = planner.propose(view)
    assert shape(spans) == [("writer", 0, 100), *((f"reader{i}", 96, 20) for i in range(4))]
    planner.accept(view, spans)
    assert planner.propose(PipelineView((), (spans,))) == ()


def test_a_single_stage_takes_readers_apart_where_a_wave_more_costs_less_than_the_others_wait() -> None:
    planner = fresh(1, 1024, WaveCost(a=4.0, b=1.0, c=0.0))
    readers = [Lane(f"reader{i}", 96, 116) for i in range(4)]
    riding = {lane.request_id: "writer" for lane in readers}
    view = PipelineView((Lane("writer", 0, 100),), behind=readers, riding=riding)
    assert shape(planner.propose(view)) == [("writer", 0, 100)]


def test_a_wave_that_takes_all_but_who_could_ride_is_not_held() -> None:
    planner, flight = fresh(1, 112, WaveCost(a=40.0, b=1.0, c=0.0)), ((Span("f", 0, 80, True),),)
    readers = [Lane("fits", 48, 88), Lane("too long", 48, 98), Lane("as long", 48, 98)]
    riding = {lane.request_id: "writer" for lane in readers}
    view = PipelineView((Lane("writer", 0, 60),), flight, slack=3.0, behind=readers, riding=riding)
    assert shape(planner.propose(view)) == [("writer", 0, 60), ("fits", 48, 40)]


def test_of_who_left_without_an_answer_nothing_is_kept() -> None:
    planner = mpu(4, 1024, WaveCost(0.01, 1e-4, 0.0))
    here = Lane("stays", 0, 500)
    planner.propose(PipelineView((here, Lane("gives up", 0, 100_000))))
    assert set(planner._open_loop._arrivals._recent) == {"stays", "gives up"}
    planner.propose(PipelineView((here,)))
    assert set(planner._open_loop._arrivals._recent) == {"stays"}


def test_of_probes_nothing_is_learned() -> None:
    planner = mpu(4, 1024, WaveCost(0.01, 1e-4, 0.0))
    arrivals = planner._open_loop._arrivals

    def learned() -> tuple[float, ...]:
        return arrivals._busy, arrivals._came, arrivals._work, arrivals._requests

    before = learned()
    for number in range(50):
        plan(planner, [Lane(f"r{number}", 0, 500, probe=True)])
    assert learned() == before
    plan(planner, [Lane("asked for", 0, 500)])
    assert learned() != before
