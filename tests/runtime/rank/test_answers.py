"""What the last rank does when waves end: at once, or when a device behind the host has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch
from wavepp_worker import token_ids
from wavepp_worker.errors import PositionMismatch, StepTimeout
from wavepp_worker.liveness.watchdog import Watched
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.sampling import sample
from wavepp_worker.model.sampling_params import SamplingParams
from wavepp_worker.model.stage import StageOutput
from wavepp_worker.model.timed.virtual_device import Ending
from wavepp_worker.runtime.protocol.events import Failed, Finished
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.requests import Arrival, StageTiming
from wavepp_worker.runtime.protocol.waves import Ending as WaveEnding
from wavepp_worker.runtime.protocol.waves import Span, WaveDone, WaveHeader
from wavepp_worker.runtime.rank import answers
from wavepp_worker.runtime.rank.answers import Answers
from wavepp_worker.runtime.rank.wave_ends import LaunchedWave
from wavepp_worker.runtime.state.reports import RankReports
from wavepp_worker.runtime.state.request_table import LocalRequest
from wavepp_worker.runtime.trace.slices import FORWARD
from wavepp_worker.runtime.trace.timeline import Timeline

from tests.support.waiting import wait_until

VOCABULARY = 16
LIMIT = 20.0
"""Seconds that each of two ranks' devices may take for a wave."""


class Device:
    """Implements ``Completion``: a wave on a device that ends when the test says so."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.waited: list[float] = []

    def wait(self, timeout: float) -> None:
        self.waited.append(timeout)
        if not self.ended.wait(60):
            raise StepTimeout("the test never ended it")


class Bench:
    """``Answers`` of a last rank.

    Attributes:
        told: to the engine and to rank 0, in one order.
        failures: what ended the rank.
    """

    def __init__(self) -> None:
        self.rank = 1
        self.told: list[Message] = []
        self.failures: list[BaseException] = []
        self.timeline = Timeline()
        sink: Any = self
        self.watched = Watched("answers")
        self.answers = Answers(sink, sink, self.timeline, 30.0, self.failures.append, self.watched)

    def send(self, *events: Message) -> None:
        """As ``RankReports``."""
        self.told.extend(events)

    def failed(self, request_id: str, error: Exception) -> None:
        """As ``RankReports``."""
        RankReports.failed(self, request_id, error)  # type: ignore[arg-type]

    def send_done(self, done: WaveDone) -> None:
        """As ``DataPlane``."""
        assert 0 < done.ended <= time.monotonic()
        self.told.append(msgspec.structs.replace(done, ended=0.0))

    def waves(self) -> list[int]:
        return [each.wave_id for each in self.told if isinstance(each, WaveDone)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.answers.close()


def request(name: str) -> LocalRequest:
    return LocalRequest(Arrival(request_id=name, prompt_tokens=3, keys=b""), compute=[0.5, 0.25])


def best(*tokens: int) -> torch.Tensor:
    """Logits under which each row prefers one token, and the one after it next."""
    logits = torch.zeros(len(tokens), VOCABULARY)
    for row, token in enumerate(tokens):
        logits[row, token], logits[row, token + 1] = 2.0, 1.0
    return logits


def wave(
    wave_id: int,
    *ended: LocalRequest,
    logits: torch.Tensor | None = None,
    done: Any = None,
    endings: Sequence[WaveEnding] | None = None,
) -> LaunchedWave:
    spans = tuple(Span(local.request.request_id, 0, 3, True) for local in ended)
    endings = [WaveEnding(SamplingParams())] * len(ended) if endings is None else endings
    header = WaveHeader(wave_id=wave_id, spans=spans, endings=tuple(endings), compute=(0.5, 0.25))
    return LaunchedWave(header, 0, ended, StageOutput({}, logits, done), LIMIT)


def test_prompts_that_end_are_answered_before_rank_0_hears_of_the_wave(bench: Bench) -> None:
    bench.answers.take(wave(0, request("a"), request("b"), logits=best(5, 9)))
    stages = (StageTiming(0, 0.5), StageTiming(1, 0.25))
    assert bench.told == [
        Finished(request_id="a", first=SampledToken(5), stages=stages),
        Finished(request_id="b", first=SampledToken(9), stages=stages),
        WaveDone(wave_id=0, compute=(0.5, 0.25)),
    ]


def test_a_wave_in_which_no_prompt_ends_needs_no_logits(bench: Bench) -> None:
    bench.answers.take(wave(0))
    assert bench.told == [WaveDone(wave_id=0, compute=(0.5, 0.25))]


def test_each_request_is_sampled_by_its_own_parameters(bench: Bench) -> None:
    endings = (
        WaveEnding(SamplingParams(), banned=(5,)),
        WaveEnding(SamplingParams(logprobs=2)),
        WaveEnding(SamplingParams(repetition_penalty=10.0), seen=token_ids.pack([1, 2, 3])),
        WaveEnding(SamplingParams(), allowed=(1 << 8).to_bytes(16, "little")),
    )
    requests = (request("stop"), request("asked"), request("penalised"), request("constrained"))
    bench.answers.take(wave(0, *requests, logits=best(5, 5, 3, 5), endings=endings))
    firsts = [each.first for each in bench.told if isinstance(each, Finished)]
    assert [first.token for first in firsts] == [6, 5, 4, 8], "3 is in the prompt"
    assert [token for token, _ in firsts[1].top] == [5, 6]


@pytest.mark.parametrize("logits", [None, best(5), best(5, 6, 7)])
def test_a_row_of_logits_for_each_prompt_that_ends(bench: Bench, logits: torch.Tensor | None) -> None:
    with pytest.raises(
        PositionMismatch, match="2 prompts ended in a wave that does not have logits and an ending for each"
    ):
        bench.answers.take(wave(0, request("a"), request("b"), logits=logits))
    assert bench.told == [], "no request is answered with another one's token"


def test_an_ending_for_each_prompt_that_ends(bench: Bench) -> None:
    with pytest.raises(PositionMismatch, match="1 prompts ended in a wave that does not have"):
        bench.answers.take(wave(0, request("a"), logits=best(5), endings=()))
    assert bench.told == []


def test_a_device_behind_the_host_is_waited_for_beside_the_loop_thread(bench: Bench) -> None:
    devices = [Device(), Device()]
    for wave_id, device in enumerate(devices):
        bench.answers.take(wave(wave_id, request(f"r{wave_id}"), logits=best(5), done=device))
    devices[1].ended.set()
    wait_until(lambda: devices[0].waited)
    assert bench.told == [], "waves end in the order they were launched"
    assert bench.watched.step is not None
    assert bench.watched.step.what == "the device's end of wave 0"
    assert bench.watched.step.seconds == 2 * LIMIT, "its device waits for that of the rank before"
    devices[0].ended.set()
    wait_until(lambda: bench.waves() == [0, 1])
    assert [type(each) for each in bench.told] == [Finished, WaveDone, Finished, WaveDone]
    assert devices[0].waited == [4 * LIMIT], "the watchdog has the first word"
    assert bench.failures == []


def test_closing_lets_the_waves_that_were_launched_end(bench: Bench) -> None:
    device = Device()
    for wave_id in range(5):
        bench.answers.take(wave(wave_id, done=device))
    threading.Timer(0.05, device.ended.set).start()
    bench.answers.close()
    assert bench.waves() == [0, 1, 2, 3, 4]


def test_a_wave_that_cannot_be_completed_ends_the_rank(bench: Bench) -> None:
    """Promise 18: the device is stuck, and nobody waits for it in vain."""

    class Stuck:
        def wait(self, timeout: float) -> None:
            raise StepTimeout("the device is stuck")

    bench.answers.take(wave(0, request("a"), logits=best(5), done=Stuck()))
    bench.answers.take(wave(1, done=Ending(0)))
    wait_until(lambda: bench.failures)
    bench.answers.close()
    assert [str(error) for error in bench.failures] == ["the device is stuck"]
    assert bench.told == [], "and what comes behind it is not done either"


def test_an_answer_that_fails_on_the_thread_ends_the_rank(bench: Bench) -> None:
    bench.answers.take(wave(0, request("a"), logits=None, done=Ending(0)))
    wait_until(lambda: bench.failures)
    assert bench.told == []


@pytest.mark.parametrize("done", [None, Ending(0)])
def test_who_cannot_be_answered_fails_alone(
    bench: Bench, done: Ending | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that are no numbers, all tokens banned, or a defect of sampling: the others of the wave are answered."""
    monkeypatch.setattr(answers, "sample", lambda *args, **kwargs: sample(*args, **kwargs, **defect(args[1])))

    def defect(params: SamplingParams) -> dict[str, Any]:
        return {"no such argument": 1} if params.top_k == 7 else {}

    endings = (
        WaveEnding(SamplingParams()),
        WaveEnding(SamplingParams(), banned=tuple(range(VOCABULARY))),
        WaveEnding(SamplingParams(top_k=7)),
        WaveEnding(SamplingParams()),
    )
    requests = [request(name) for name in ("nan", "banned", "defective", "good")]
    logits = best(5, 5, 5, 5)
    logits[0, 3] = torch.nan
    bench.answers.take(wave(0, *requests, logits=logits, done=done, endings=endings))
    wait_until(lambda: bench.waves() == [0])
    assert [each.first.token for each in bench.told if isinstance(each, Finished)] == [5]
    reasons = {each.request_id: each.reason for each in bench.told if isinstance(each, Failed)}
    assert "the model's logits are not numbers" in reasons["nan"]
    assert "no token is left to choose" in reasons["banned"]
    assert "TypeError" in reasons["defective"]
    assert len(reasons) == 3
    assert bench.failures == []


def device_slices(bench: Bench) -> list[tuple[int | None, int, int]]:
    slices, _ = bench.timeline.take()
    return [
        (each.wave, each.start, each.end) for each in slices if (each.track, each.name) == ("device", FORWARD)
    ]


def test_a_device_that_does_not_tell_is_recorded_as_one_wave_after_the_other(bench: Bench) -> None:
    launched = bench.timeline.now()
    devices = [Device(), Device()]
    for wave_id, device in enumerate(devices):
        header = WaveHeader(wave_id=wave_id, spans=())
        bench.answers.take(LaunchedWave(header, launched, (), StageOutput({}, None, device), LIMIT))
        device.ended.set()
    wait_until(lambda: bench.waves() == [0, 1])
    (first, first_begun, first_ended), (second, second_begun, second_ended) = device_slices(bench)
    assert (first, second) == (0, 1)
    assert first_begun == launched
    assert second_begun == first_ended <= second_ended


def test_a_device_that_tells_is_recorded_by_who_launched(bench: Bench) -> None:
    bench.answers.take(wave(0, done=Ending(0)))
    wait_until(lambda: bench.waves() == [0])
    assert device_slices(bench) == []
