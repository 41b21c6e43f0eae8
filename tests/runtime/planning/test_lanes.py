"""Which requests share waves, and what the WAVE thread hears of them, in waves of 8 tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.planning.greedy import GreedyPlanner
from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.planning.ring import Ring
from wavepp_worker.runtime.protocol.lane_events import LaneAborted, LaneAdmitted, LaneEnded, LaneScheduled
from wavepp_worker.runtime.protocol.waves import Span
from wavepp_worker.runtime.protocol.whereabouts import InLanes

from tests.support.planning import shape


class Observant(GreedyPlanner):
    """Keeps what it is told of executed waves, and who was behind others when it was asked last."""

    def __init__(self) -> None:
        super().__init__(8)
        self.seen: list[tuple[Sequence[Span], float]] = []
        self.behind: list[str] = []

    def propose(self, view: PipelineView) -> tuple[Span, ...]:
        self.behind = [lane.request_id for lane in view.behind]
        return super().propose(view)

    def observe(self, spans: Sequence[Span], seconds: float) -> None:
        self.seen.append((spans, seconds))


def admitted(*lengths: int, waves: int = 4, max_num_seqs: int = 8) -> Lanes:
    """Requests ``r0``, ``r1``, … of so many tokens, all admitted."""
    lanes = Lanes(Ring(waves), Observant(), max_num_seqs)
    for i, tokens in enumerate(lengths):
        assert lanes.take(LaneAdmitted(f"r{i}", 0, tokens)) == []
    return lanes


def test_a_request_has_a_lane_until_its_last_chunk_is_in_a_wave_and_ends_with_that_wave() -> None:
    lanes = admitted(12)
    first, nothing = lanes.launch(lanes.propose())
    assert (nothing, len(lanes)) == ([], 1)
    second, scheduled = lanes.launch(lanes.propose())
    assert (scheduled, len(lanes)) == ([LaneScheduled("r0")], 0)
    assert lanes.propose() == (), "no work is left"
    assert lanes.complete(first) == []
    assert lanes.complete(second) == [LaneEnded("r0", aborted=False)]


def test_only_the_oldest_requests_share_waves_and_take_blocks() -> None:
    lanes = admitted(2, 3, 4, max_num_seqs=2)
    assert shape(lanes.propose()) == [("r0", 0, 2), ("r1", 0, 3)]
    assert lanes.next_to_materialise() == "r0"
    lanes.materialised("r0")
    lanes.materialised("r1")
    assert lanes.next_to_materialise() is None, "r2 keeps its lease until one of the first two is scheduled"
    lanes.launch(lanes.propose())
    assert lanes.next_to_materialise() == "r2"


def test_nothing_is_proposed_while_the_ring_is_full() -> None:
    lanes = admitted(32, waves=2)
    lanes.launch(lanes.propose())
    lanes.launch(lanes.propose())
    assert lanes.propose() == ()
    with pytest.raises(ValueError, match="2 waves are in flight"):
        lanes.launch((Span("r0", 16, 8, False),))


def test_a_completed_wave_makes_place_in_the_ring_and_is_told_to_the_planner() -> None:
    planner = Observant()
    lanes = Lanes(Ring(1), planner, 8)
    lanes.take(LaneAdmitted("r0", 0, 32))
    wave, _ = lanes.launch(lanes.propose())
    assert lanes.propose() == ()
    lanes.complete(wave, seconds=0.25)
    assert planner.seen == [((Span("r0", 0, 8, False),), 0.25)]
    assert shape(lanes.propose()) == [("r0", 8, 8)]


def test_who_is_aborted_before_a_wave_carries_it_has_ended_at_once() -> None:
    lanes = admitted(4, 4)
    assert lanes.take(LaneAborted("r0")) == [LaneEnded("r0", aborted=True)]
    assert lanes.next_to_materialise() == "r1"
    assert shape(lanes.propose()) == [("r1", 0, 4)]
    lanes.check()


def test_who_is_aborted_in_flight_ends_with_the_last_wave_that_carries_it() -> None:
    """Promise 10: its blocks are in use until then."""
    lanes = admitted(32)
    first, _ = lanes.launch(lanes.propose())
    second, _ = lanes.launch(lanes.propose())
    assert lanes.take(LaneAborted("r0")) == []
    assert (len(lanes), lanes.propose()) == (0, ())
    lanes.check()
    assert lanes.complete(first) == []
    assert lanes.complete(second) == [LaneEnded("r0", aborted=True)]
    lanes.check()


def test_who_is_aborted_behind_its_last_chunk_ends_as_aborted() -> None:
    lanes = admitted(4)
    wave, scheduled = lanes.launch(lanes.propose())
    assert scheduled == [LaneScheduled("r0")]
    assert lanes.take(LaneAborted("r0")) == []
    assert lanes.complete(wave) == [LaneEnded("r0", aborted=True)]


def test_who_reads_what_another_computes_has_no_place_before_that_is_in_a_wave() -> None:
    lanes = admitted(20)
    lanes.take(LaneAdmitted("reader", 12, 18, after="r0"))
    lanes.take(LaneAdmitted("late", 0, 2))
    assert lanes.next_to_materialise() == "r0"
    lanes.materialised("r0")
    assert lanes.next_to_materialise() == "late", "the reader's blocks are not there"
    assert shape(lanes.propose()) == [("r0", 0, 8)]
    lanes.launch(lanes.propose())
    assert shape(lanes.propose()) == [("r0", 8, 8)], "eight of twelve tokens"
    lanes.launch(lanes.propose())
    assert shape(lanes.propose()) == [("r0", 16, 4), ("reader", 12, 4)], "before who came later"
    assert lanes.next_to_materialise() == "reader"
    lanes.check()


def test_a_planner_is_told_of_readers_before_they_have_a_place() -> None:
    planner = Observant()
    lanes = Lanes(Ring(4), planner, 8)
    lanes.take(LaneAdmitted("writer", 0, 12))
    lanes.take(LaneAdmitted("reader", 12, 18, after="writer"))
    lanes.take(LaneAdmitted("gone", 12, 18, after="writer"))
    lanes.propose()
    assert planner.behind == ["reader", "gone"]
    lanes.take(LaneAborted("gone"))
    lanes.launch(lanes.propose())
    assert planner.behind == ["reader"]
    lanes.launch(lanes.propose())
    assert lanes.propose()
    assert planner.behind == []


def test_a_reader_does_not_wait_for_a_writer_that_is_scheduled_to_its_end() -> None:
    lanes = admitted(8)
    lanes.launch(lanes.propose())
    lanes.take(LaneAdmitted("reader", 8, 10, after="r0"))
    assert shape(lanes.propose()) == [("reader", 8, 2)]


def test_a_reader_that_is_aborted_waits_for_nobody() -> None:
    lanes = admitted(20)
    lanes.take(LaneAdmitted("reader", 12, 18, after="r0"))
    assert lanes.take(LaneAborted("reader")) == [LaneEnded("reader", aborted=True)]
    lanes.check()


@pytest.mark.parametrize(("until", "last"), [(12, False), (20, True)])
def test_who_has_lost_its_owner_goes_on_as_far_as_others_read_and_ends_as_aborted(
    until: int, last: bool
) -> None:
    lanes = admitted(20)
    lanes.materialised("r0")
    waves = [lanes.launch(lanes.propose())[0]]
    assert lanes.take(LaneAborted("r0", until)) == []
    lanes.take(LaneAdmitted("reader", until, until + 2, after="r0"))
    while True:
        spans = lanes.propose()
        assert [span.request_id for span in spans] == ["r0"]
        wave, told = lanes.launch(spans)
        waves.append(wave)
        lanes.check()
        assert told == []
        if spans[-1].start + spans[-1].length == until:
            break
    assert spans[-1].last == last
    assert shape(lanes.propose()) == [("reader", until, 2)]
    assert [lanes.complete(wave) for wave in waves] == [[]] * (len(waves) - 1) + [
        [LaneEnded("r0", aborted=True)]
    ]


def test_who_has_lost_its_owner_ends_when_its_last_reader_goes() -> None:
    lanes = admitted(20)
    wave, _ = lanes.launch(lanes.propose())
    assert lanes.take(LaneAborted("r0", 16)) == []
    assert lanes.take(LaneAborted("r0", 8)) == [], "the wave in flight"
    assert lanes.propose() == ()
    lanes.check()
    assert lanes.complete(wave) == [LaneEnded("r0", aborted=True)]


def test_a_wave_that_is_not_the_next_work_of_its_lanes_is_refused_and_changes_nothing() -> None:
    lanes = admitted(12)
    with pytest.raises(PositionMismatch, match="accepted"):
        lanes.launch((Span("r0", 4, 8, True),))
    assert shape(lanes.propose()) == [("r0", 0, 8)]
    assert not lanes.ring.carries("r0")


def test_waves_complete_in_the_order_of_their_launch() -> None:
    lanes = admitted(32)
    lanes.launch(lanes.propose())
    second, _ = lanes.launch(lanes.propose())
    with pytest.raises(PositionMismatch, match="oldest wave in flight is 0"):
        lanes.complete(second)


def test_nothing_is_learned_from_waves_that_nobody_asked_for() -> None:
    """After an idle night of canaries, a planner would believe that waves have one token."""
    planner = Observant()
    lanes = Lanes(Ring(4), planner, 8)
    for name, probe in (("canary", True), ("user", False), ("canary", False)):
        lanes.take(LaneAdmitted(name, 0, 1, probe))
        wave_id, _ = lanes.launch(lanes.propose())
        lanes.complete(wave_id, 0.5)
    assert [spans[0].request_id for spans, _ in planner.seen] == ["user", "canary"], (
        "the last is a user's own"
    )
    lanes.take(LaneAdmitted("aborted", 0, 1, True))
    lanes.take(LaneAborted("aborted"))
    lanes.take(LaneAdmitted("aborted", 0, 1))
    wave_id, _ = lanes.launch(lanes.propose())
    lanes.complete(wave_id, 0.5)
    assert len(planner.seen) == 3


def test_where_requests_are_is_told_of_those_that_have_a_lane_or_are_in_a_wave() -> None:
    lanes = Lanes(Ring(4), GreedyPlanner(4), 8)
    lanes.take(LaneAdmitted("writer", 0, 10))
    lanes.take(LaneAdmitted("reader", 8, 12, after="writer"))
    lanes.take(LaneAdmitted("short", 2, 3))
    lanes.launch(lanes.propose())
    reader, writer, unknown = (list(lanes.whereabouts([each])) for each in ("reader", "writer", "unknown"))
    assert writer == [
        InLanes(request_id="writer", place=1, lanes=3, next=4, end=10, waves=(1,), wave_ids=(0,))
    ]
    assert reader == [
        InLanes(request_id="reader", place=2, lanes=3, next=8, end=12, after="writer", after_tokens=4)
    ]
    assert unknown == []
    for _ in range(2):
        lanes.launch(lanes.propose())
    [reader, writer, short] = lanes.whereabouts(["reader", "writer", "short"])
    assert (writer.place, writer.next, writer.end, writer.waves) == (0, 0, 0, (1, 2, 3))
    assert (reader.after, reader.place, reader.next, reader.waves) == ("", 1, 10, (3,))
    assert (short.place, short.lanes, short.waves) == (2, 2, ())
    for name in ("writer", "reader", "short"):
        lanes.materialised(name)
    lanes.complete(0)
    [writer] = lanes.whereabouts(["writer"])
    assert (writer.waves, writer.wave_ids) == ((1, 2), (1, 2))
    lanes.check()


def test_waves_that_nobody_asked_for_do_not_count_as_in_flight() -> None:
    lanes = Lanes(Ring(4), GreedyPlanner(4), 8)
    lanes.take(LaneAdmitted("probe", 0, 1, probe=True))
    lanes.launch(lanes.propose())
    assert (len(lanes.ring), lanes.in_flight) == (1, 0)
    lanes.take(LaneAdmitted("a", 0, 4))
    lanes.launch(lanes.propose())
    assert (len(lanes.ring), lanes.in_flight) == (2, 1)
    lanes.complete(0)
    assert lanes.in_flight == 1


def test_what_no_wave_carries_is_counted_with_its_tokens() -> None:
    lanes = admitted(12, 6)
    assert lanes.in_no_wave() == (2, 18)
    lanes.launch(lanes.propose())
    # The second waits; of the first, 4 tokens are left.
    assert lanes.in_no_wave() == (1, 10)


def test_spans_of_probes_alone_are_asked_for_by_nobody() -> None:
    lanes = Lanes(Ring(4), Observant(), 8)
    lanes.take(LaneAdmitted("canary", 0, 1, probe=True))
    canary, other = Span("canary", 0, 1, True), Span("r", 0, 1, True)
    assert not lanes.asked_for([canary])
    assert lanes.asked_for([canary, other])


def riding(writer: int, *readers: tuple[str, int, int]) -> Lanes:
    """Who reads from ``writer``, of so many tokens, may run in its wave: name, first token and end of each."""
    lanes = Lanes(Ring(4), Observant(), 8, riders=True)
    lanes.take(LaneAdmitted("writer", 0, writer))
    for name, start, end in readers:
        lanes.take(LaneAdmitted(name, start, end, after="writer"))
    for name in ("writer", *(name for name, _, _ in readers)):
        lanes.materialised(name)
    return lanes


def test_who_rides_is_in_the_wave_that_computes_what_it_reads_and_waits_for_nobody_any_more() -> None:
    lanes = riding(6, ("reader", 4, 6), ("slow", 4, 9))
    wave, ended = lanes.launch(
        (Span("writer", 0, 6, True), Span("reader", 4, 2, True), Span("slow", 4, 2, False))
    )
    lanes.check()
    assert [each.request_id for each in ended] == ["writer", "reader"]
    assert shape(lanes.propose()) == [("slow", 6, 3)], (
        "of one that has begun, the rest is work like any other"
    )
    assert [each.request_id for each in lanes.complete(wave)] == ["writer", "reader"]


@pytest.mark.parametrize(
    "spans",
    [
        (Span("reader", 4, 2, True),),
        (Span("reader", 4, 2, True), Span("writer", 0, 6, True)),
        (Span("writer", 0, 3, False), Span("reader", 4, 2, True)),
    ],
    ids=["no writer", "behind", "not as far"],
)
@pytest.mark.parametrize("riders", [True, False])
def test_a_wave_in_which_somebody_reads_what_is_not_computed_before_is_refused(
    spans: tuple[Span, ...], riders: bool
) -> None:
    lanes = riding(6, ("reader", 4, 6))
    lanes._riders = riders
    with pytest.raises(PositionMismatch, match="reader"):
        lanes.launch(spans)
    assert shape(lanes.propose()) == [("writer", 0, 6)]
    lanes.check()


def test_nobody_rides_where_layers_keep_less_than_everything() -> None:
    lanes = Lanes(Ring(4), Observant(), 8)
    lanes.take(LaneAdmitted("writer", 0, 6))
    lanes.take(LaneAdmitted("reader", 4, 6, after="writer"))
    with pytest.raises(PositionMismatch, match="which reads blocks that writer has yet to compute"):
        lanes.launch((Span("writer", 0, 6, True), Span("reader", 4, 2, True)))


def test_who_reads_what_is_in_an_earlier_wave_rides_with_nobody() -> None:
    lanes = riding(16, ("reader", 8, 10))
    lanes.launch((Span("writer", 0, 8, False),))
    lanes.launch((Span("reader", 8, 2, True),))
    lanes.check()
