"""A rank's executor over fake layers: what they are given, what is settled, and what is passed on, in that order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.liveness.step_bound import StepBound
from wavepp_worker.liveness.watchdog import Step, Watched
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.model.stage import Activations, Chunk, Completion, StageOutput
from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.protocol.events import Finished
from wavepp_worker.runtime.protocol.requests import PrefillRequest
from wavepp_worker.runtime.protocol.waves import Ending as WaveEnding
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.answers import Answers
from wavepp_worker.runtime.rank.departures import Departures
from wavepp_worker.runtime.rank.executor import Executor
from wavepp_worker.runtime.state.idle_seconds import CAUSES, IdleSeconds
from wavepp_worker.runtime.trace.slices import FORWARD, LAUNCH
from wavepp_worker.runtime.trace.timeline import Timeline

from tests.support.measured_wave import MeasuredWave
from tests.support.rank_books import RankBooks
from tests.support.waiting import wait_until

VOCABULARY = 8
KV: Any = "the rank's KV memory"


class Bench:
    """One rank's executor; implements ``StageModel`` and ``DataPlane`` as far as it uses them.

    Attributes:
        forwards: what the layers were given.
        sent: on the data plane, with the blocks that were reusable then.
        done, seconds: what the layers answer of the device.
        lacking: rows of logits that they leave out.
        steps: what the thread said of itself meanwhile.
    """

    def __init__(self, rank: int = 0, ranks: int = 2) -> None:
        self.books = RankBooks(rank=rank)
        self.forwards: list[tuple[Any, list[Chunk], Any]] = []
        self.sent: list[tuple[Any, Activations, int]] = []
        self.failures: list[BaseException] = []
        self.steps: list[Step | None] = []
        self.now = 100.0
        self.idle = IdleSeconds(lambda: self.now)
        self.done: Completion | None = None
        self.seconds: float | None = 0.25
        self.lacking = 0
        self.timeline = Timeline()
        plane: Any = self
        stage: Any = self
        self.last = rank == ranks - 1
        reports = self.books.parts.reports
        self.watched = Watched("LOOP")
        self.bound = StepBound(least=5.0, first=50.0)
        watched, fail = Watched("behind"), self.failures.append
        outlet: Answers | Departures = (
            Answers(plane, reports, self.timeline, 30.0, fail, watched)
            if self.last
            else Departures(plane, self.timeline, 30.0, fail, watched)
        )
        self.executor = Executor(
            stage,
            KV,
            self.books.parts.order,
            self.timeline,
            first=rank == 0,
            outlet=outlet,
            watched=self.watched,
            bound=self.bound,
            idle=self.idle,
        )

    def forward(self, inputs: torch.Tensor | Activations, chunks: list[Chunk], kv: Any) -> StageOutput:
        """On the last rank, every prompt's first token is its number among those that end."""
        self.forwards.append((inputs, chunks, kv))
        self.steps.append(self.watched.step)
        self.now += 3.0
        if not self.last:
            hidden = torch.ones(sum(chunk.length for chunk in chunks), 2)
            return StageOutput({"hidden": hidden}, None, self.done, self.seconds)
        ended = sum(chunk.wants_logits for chunk in chunks) - self.lacking
        return StageOutput({}, torch.eye(ended, VOCABULARY), self.done, self.seconds)

    def send_wave(self, header: WaveHeader, activations: Activations) -> None:
        self.sent.append((header, activations, self.books.cache.use().reusable))

    def send_done(self, done: WaveDone) -> None:
        self.sent.append((done, {}, self.books.cache.use().reusable))

    def execute(
        self, wave_id: int, *spans: Span, compute: tuple[float, ...] = (), **activations: Any
    ) -> None:
        """With what rank 0 tells the others of the prompts that end."""
        ends = sum(span.last for span in spans) if self.books.reports.rank else 0
        endings = (WaveEnding(SamplingParams()),) * ends
        header = WaveHeader(wave_id=wave_id, spans=spans, endings=endings, compute=compute)
        self.executor.execute(header, activations)

    def recorded(self, *names: str) -> list[tuple[str, str, int, int]]:
        slices, _ = self.timeline.take()
        return [(each.track, each.name, each.start, each.end) for each in slices if each.name in names]


@pytest.fixture
def last() -> Iterator[Bench]:
    """The last of two ranks."""
    bench = Bench(rank=1)
    yield bench
    bench.executor.close()


def test_rank_0_packs_the_prompts_tokens_in_the_order_of_the_spans() -> None:
    bench = Bench(rank=0)
    a, b = bench.books.admit("a", range(10)), bench.books.admit("b", range(20, 26))
    bench.execute(0, Span("a", 0, 4, False))
    bench.execute(1, Span("b", 0, 6, True), Span("a", 4, 3, False))
    tokens, chunks, kv = bench.forwards[1]
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [20, 21, 22, 23, 24, 25, 4, 5, 6]
    assert [(chunk.start, chunk.length, chunk.wants_logits) for chunk in chunks] == [
        (0, 6, True),
        (4, 3, False),
    ]
    assert [chunk.block_table for chunk in chunks] == [b.table, a.table]
    assert kv is KV


def test_rank_0_tells_the_last_rank_what_to_choose_a_first_token_by() -> None:
    """The last rank has no prompts; their tokens travel where a repetition penalty needs them, each once."""
    bench = Bench(rank=0)
    penalised = SamplingParams(repetition_penalty=1.5, logprobs=0)
    drawn = SamplingParams(temperature=0.5, logprobs=0)
    for name, sampling in (("a", penalised), ("b", drawn), ("c", penalised)):
        request = PrefillRequest.of(name, [7, 3, 7, 7], sampling=sampling, banned=(9,))
        bench.books.admit_request(msgspec.structs.replace(request, allowed=b"\x07" if name == "b" else b""))
    bench.execute(0, Span("a", 0, 4, True), Span("b", 0, 4, True), Span("c", 0, 2, False))
    ((header, _, _),) = bench.sent
    assert header.endings == (
        WaveEnding(penalised, (9,), token_ids.pack([3, 7])),
        WaveEnding(drawn, (9,), allowed=b"\x07"),
    )


def test_a_rank_between_passes_on_what_the_last_rank_is_told() -> None:
    bench = Bench(rank=1, ranks=3)
    bench.books.admit("a", range(4))
    bench.execute(0, Span("a", 0, 4, True), compute=(0.5,), hidden=torch.zeros(4, 2))
    ((header, _, _),) = bench.sent
    assert header.endings == (WaveEnding(SamplingParams()),)


def test_other_ranks_compute_on_what_the_rank_before_sent() -> None:
    bench = Bench(rank=1, ranks=3)
    bench.books.admit("a", range(10))
    hidden = torch.zeros(4, 2)
    bench.execute(0, Span("a", 0, 4, False), compute=(0.5,), hidden=hidden)
    assert bench.forwards[0][0] == {"hidden": hidden}
    ((header, activations, _),) = bench.sent
    assert header == WaveHeader(wave_id=0, spans=(Span("a", 0, 4, False),), compute=(0.5, 0.25))
    assert activations["hidden"].shape == (4, 2)


def test_a_wave_is_settled_before_it_is_passed_on(last: Bench) -> None:
    """When rank 0 learns that it is done, all ranks are: what it computed is reusable, who ended is forgotten."""
    for bench in (Bench(rank=0), last):
        bench.books.admit("a", range(8))
        bench.execute(0, Span("a", 0, 8, True), compute=(0.5,) * bench.books.parts.reports.rank)
        ((_, _, reusable),) = bench.sent
        assert reusable == 2
        bench.books.at_rest()


def test_the_last_rank_answers_who_ended_and_tells_rank_0(last: Bench) -> None:
    for name in "abc":
        last.books.admit(name, [ord(name)] * 8)
    spans = (Span("a", 0, 8, True), Span("b", 0, 4, False), Span("c", 0, 8, True))
    last.execute(0, *spans, compute=(0.5,))
    finished = last.books.events.of(Finished)
    assert [(each.request_id, each.first.token) for each in finished] == [("a", 0), ("c", 1)]
    assert [(stage.rank, stage.compute) for stage in finished[0].stages] == [(0, 0.5), (1, 0.25)]
    ((done, _, _),) = last.sent
    assert isinstance(done, WaveDone)
    assert (done.wave_id, done.compute) == (0, (0.5, 0.25))


def test_missing_logits_are_an_error_of_the_rank(last: Bench) -> None:
    last.lacking = 1
    last.books.admit("a", range(8))
    with pytest.raises(PositionMismatch, match="1 prompts ended in a wave that does not have logits"):
        last.execute(0, Span("a", 0, 8, True), compute=(0.5,))
    assert last.sent == []


@pytest.mark.parametrize(
    ("wave_id", "span"),
    [
        (1, Span("a", 0, 4, False)),
        (0, Span("a", 4, 4, False)),
        (0, Span("a", 0, 4, True)),
        (0, Span("x", 0, 4, False)),
    ],
)
def test_nothing_is_computed_of_a_wave_that_is_not_next(wave_id: int, span: Span) -> None:
    """Promise 12."""
    bench = Bench(rank=0)
    bench.books.admit("a", range(8))
    with pytest.raises(PositionMismatch):
        bench.execute(wave_id, span)
    assert bench.forwards == []
    assert bench.sent == []


def test_seconds_are_the_devices_where_it_tells_and_else_the_hosts() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(8))
    bench.seconds = 1e6
    bench.execute(0, Span("a", 0, 4, False))
    bench.seconds = None
    bench.execute(1, Span("a", 4, 4, True))
    told, measured = (header.compute[0] for header, _, _ in bench.sent)
    assert told == 1e6
    assert 0 < measured < 60


def test_a_device_behind_the_host_is_passed_on_before_it_ends() -> None:
    """Rank 0 launches ahead: what follows may rely on blocks that are queued on the device."""
    bench = Bench(rank=0)
    local = bench.books.admit("a", [0, 1, 2, 3, 4, 5, 6, 7, 8])
    end = bench.timeline.now() + 3600 * 10**9
    bench.done = Ending(end)
    bench.execute(0, Span("a", 0, 4, False))
    (left,) = bench.executor.device.left()
    assert 3500 < left <= 3600
    assert len(bench.sent) == 1
    assert bench.books.cache.match(local.keys, 9) == 4
    bench.done = None
    bench.execute(1, Span("a", 4, 5, True))
    assert len(bench.executor.device.left()) == 1


def test_the_last_rank_of_a_device_behind_the_host_answers_when_it_ends(last: Bench) -> None:
    ended = threading.Event()

    class Device:
        def wait(self, timeout: float) -> None:
            assert ended.wait(60)

    last.done = Device()
    last.books.admit("a", range(8))
    last.execute(0, Span("a", 0, 4, False), compute=(0.5,))
    last.execute(1, Span("a", 4, 4, True), compute=(0.5,))
    assert len(last.forwards) == 2, "the LOOP thread launches on"
    assert last.sent == []
    ended.set()
    wait_until(lambda: len(last.sent) == 2)
    assert [message.wave_id for message, _, _ in last.sent] == [0, 1]
    (finished,) = last.books.events.of(Finished)
    assert [stage.compute for stage in finished.stages] == [1.0, 0.5]
    assert last.failures == []


def test_what_a_device_measures_is_passed_on_when_it_has_computed_and_the_host_launches_on() -> None:
    """The activations are on their way to host memory until then."""
    bench = Bench(rank=0)
    local = bench.books.admit("a", range(12))
    waves = [MeasuredWave(2.0), MeasuredWave(3.0)]
    bench.seconds = None
    for wave_id, wave in enumerate(waves):
        bench.done = wave
        bench.execute(wave_id, Span("a", 4 * wave_id, 4, False))
    assert len(bench.executor.device.left()) == 2
    assert bench.sent == []
    assert bench.books.parts.reports.busy == 0.0
    assert bench.books.cache.match(local.keys, 12) == 8, "what follows may rely on what is queued"
    for wave in waves:
        wave.end()
    wait_until(lambda: len(bench.sent) == 2)
    assert [header.compute for header, _, _ in bench.sent] == [(2.0,), (3.0,)]
    assert bench.executor.device.left() == []
    assert bench.books.parts.reports.busy == 5.0
    bench.execute(2, Span("a", 8, 4, True))
    step = bench.steps[2]
    assert step is not None
    assert step.seconds == pytest.approx(30.0, rel=0.01), "ten times the slowest, by the device's seconds"
    bench.executor.close()


def test_the_last_rank_adds_what_its_device_measured_to_its_answers(last: Bench) -> None:
    request = msgspec.structs.replace(PrefillRequest.of("a", range(8)), traced=True)
    last.books.admit_request(request)
    waves = [MeasuredWave(2.0), MeasuredWave(3.0)]
    last.seconds = None
    for wave_id, wave in enumerate(waves):
        last.done = wave
        last.execute(wave_id, Span("a", 4 * wave_id, 4, wave_id == 1), compute=(0.5,))
    assert last.sent == []
    for wave in waves:
        wave.end()
    wait_until(lambda: len(last.sent) == 2)
    assert [done.compute for done, _, _ in last.sent] == [(0.5, 2.0), (0.5, 3.0)]
    (finished,) = last.books.events.of(Finished)
    assert [stage.compute for stage in finished.stages] == [1.0, 5.0]
    assert [wave.compute for wave in finished.waves] == [(0.5, 2.0), (0.5, 3.0)]


def test_a_device_that_takes_longer_than_expected_is_not_idle_meanwhile() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(12))
    bench.seconds = None
    bench.done = wave = MeasuredWave(2.0)
    bench.execute(0, Span("a", 0, 4, False))
    for _ in range(3):
        bench.now += 10.0
        bench.executor.waits_for("planner")
    assert not any(bench.idle.seconds().values())
    wave.end()
    bench.now += 10.0
    bench.executor.waits_for("planner")
    assert bench.idle.seconds()["planner"] == pytest.approx(10.0, abs=0.1)
    bench.executor.close()


def test_closing_waits_for_what_was_launched(last: Bench) -> None:
    last.books.admit("a", range(8))
    last.done = Ending(last.timeline.now() + 10**8)
    last.execute(0, Span("a", 0, 8, True), compute=(0.5,))
    last.executor.close()
    assert len(last.sent) == 1


def test_the_timeline_shows_the_device_where_it_tells_and_else_what_the_host_did() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(12))
    bench.execute(0, Span("a", 0, 4, False))
    assert [each[:2] for each in bench.recorded(FORWARD, LAUNCH)] == [("loop", FORWARD)]
    bench.done = Ending(end := bench.timeline.now() + 10**9)
    bench.execute(1, Span("a", 4, 4, False))
    launch, forward = bench.recorded(FORWARD, LAUNCH)
    assert launch[:2] == ("loop", LAUNCH)
    assert forward == ("device", FORWARD, end - 250_000_000, end)
    bench.seconds = None
    bench.execute(2, Span("a", 8, 4, True))
    assert [each[:2] for each in bench.recorded(FORWARD, LAUNCH)] == [("loop", LAUNCH)]


def test_while_a_wave_runs_the_watchdog_can_tell_which_and_how_long_it_may_take() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(10))
    bench.seconds = 2.0
    bench.execute(0, Span("a", 0, 4, False))
    bench.execute(1, Span("a", 4, 4, False))
    first, second = bench.steps
    assert first is not None
    assert second is not None
    assert (first.what, first.seconds) == ("wave 0 (4 tokens of 1 requests)", 50.0)
    assert second.what == "wave 1 (4 tokens of 1 requests)"
    assert second.seconds == pytest.approx(20.0, rel=0.01), "ten times the first, which was as large"


def test_what_a_forward_takes_is_no_idle_time() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(10))
    bench.now += 1.0
    bench.execute(0, Span("a", 0, 4, False))
    bench.now += 0.5
    bench.execute(1, Span("a", 4, 4, False))
    assert bench.idle.seconds() == dict.fromkeys(CAUSES, 0.0) | {"no_requests": 1.0, "host": 0.5}


def test_a_device_behind_the_host_is_idle_only_when_it_has_no_wave_left() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(10))
    bench.done = Ending(time.monotonic_ns() + 10_000_000_000)
    bench.execute(0, Span("a", 0, 4, False))
    bench.idle.waits_for("planner")
    bench.now += 9.0
    bench.idle.waits_for("planner")
    assert not any(bench.idle.seconds().values())
    bench.now += 3.0
    bench.idle.waits_for("planner")
    assert bench.idle.seconds()["planner"] == pytest.approx(2.0, abs=1.0)


def test_ranks_tell_each_other_when_they_began_with_a_traced_request_and_the_last_keeps_it(
    last: Bench,
) -> None:
    for name in "ab":
        request = PrefillRequest.of(name, range(8))
        last.books.admit_request(msgspec.structs.replace(request, traced=name == "a"))
    first = Bench(rank=0)
    first.books.admit_request(msgspec.structs.replace(PrefillRequest.of("a", range(8)), traced=True))
    before = time.monotonic()
    first.execute(0, Span("a", 0, 8, True))
    ((header, _, _),) = first.sent
    (begun,) = header.begun
    assert before <= begun <= time.monotonic()
    spans = (Span("a", 0, 8, True), Span("b", 0, 8, True))
    endings = (WaveEnding(SamplingParams()),) * 2
    last.executor.execute(
        WaveHeader(wave_id=0, spans=spans, endings=endings, compute=(0.5,), begun=header.begun), {}
    )
    traced, other = last.books.events.of(Finished)
    (wave,) = traced.waves
    assert (wave.wave_id, wave.start, wave.length, wave.compute) == (0, 0, 8, (0.5, 0.25))
    assert wave.begun[0] == begun
    assert wave.begun[1] >= begun
    assert wave.ended == pytest.approx(wave.begun[1] + 0.25)
    assert other.waves == ()


def test_nothing_is_told_of_when_waves_began_if_nobody_traces_them() -> None:
    bench = Bench(rank=0)
    bench.books.admit("a", range(8))
    bench.execute(0, Span("a", 0, 8, True))
    ((header, _, _),) = bench.sent
    assert header.begun == ()
