"""Stand-ins for the engines: the same surface, no model, answers after a delay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from wavepp_worker.decode.engine_io import Arrived, DecodeOutput, DecodeRequest, DecodeStats
from wavepp_worker.errors import EngineDead, InvalidRequest, RequestAborted
from wavepp_worker.handoff.decode.received import Moments
from wavepp_worker.handoff.offer import FirstToken, Offer, RankAddress
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.load import EngineStats
from wavepp_worker.runtime.protocol.prefill_trace import PrefillTrace, WaveTrace
from wavepp_worker.runtime.protocol.requests import (
    HandedOff,
    PrefillRequest,
    PrefillResult,
    RankHandedOff,
    StageTiming,
    Timings,
)
from wavepp_worker.worker_description import EngineDescription, RankDescription

VOCABULARY = 258
CONTEXT = 128
REUSED = 3
KEY = Secret.fresh()
TRACE = PrefillTrace(
    arrived=1.0, discovered=1.1, selected=1.2, admitted=1.3, attempts=1,
    waves=(WaveTrace(5, REUSED, 4, (1.4,), (0.2,), 1.6),), answered=1.7,
)  # fmt: skip
ARRIVED = Arrived(
    moments=Moments(began=1.0, offered=1.1, prefilled=1.2, ended=1.3), bytes_received=40, ranks=1
)


class FakePrefillEngine:
    """Answers with the prompt's last token, plus one, after ``delay`` seconds."""

    delay = 0.01

    def __init__(
        self,
        config: Any,
        *,
        on_index: Any = None,
        on_death: Any = None,
        on_handed_off: Any = None,
        on_pass: Any = None,
    ) -> None:
        self.config, self.on_index, self.on_death, self.on_pass = config, on_index, on_death, on_pass
        self.on_handed_off = on_handed_off
        self.info = SimpleNamespace(vocab_size=VOCABULARY, eos_token_ids=(257,), context_length=CONTEXT)
        self.max_model_len, self.total_blocks = CONTEXT, 64
        self.adapters = {each.partition("=")[0]: None for each in getattr(config, "lora_modules", ())}
        self.started = self.closed = 0
        self.aborted: list[str] = []
        self.live: dict[str, Future[PrefillResult]] = {}
        self.requests: list[PrefillRequest] = []
        self.dead: str | None = None

    def start(self) -> None:
        self.started += 1

    def close(self) -> None:
        self.closed += 1
        for request_id in list(self.live):
            self._end(request_id, EngineDead("the engine was closed while the request was in flight"))

    @property
    def alive(self) -> bool:
        return self.dead is None

    def reusable_tokens(self, tokens: bytes, salt: str = "", lora: str = "") -> int:
        return 0

    def submit(
        self, request: PrefillRequest, on_admitted: Callable[[], None] | None = None
    ) -> Future[PrefillResult]:
        if self.dead is not None:
            raise EngineDead(self.dead)
        if request.request_id in self.live:
            raise InvalidRequest(f"request id {request.request_id} is in use")
        future: Future[PrefillResult] = Future()
        self.live[request.request_id] = future
        self.requests.append(request)
        if on_admitted is not None:
            on_admitted()
        threading.Timer(self.delay, self._finish, (request, future)).start()
        return future

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._end(request_id, RequestAborted(f"request {request_id} was aborted"))

    def withdraw(self, offer: Offer) -> None:
        self.abort(offer.request_id)

    def die(self, reason: str) -> None:
        self.dead = reason
        for request_id in list(self.live):
            self._end(request_id, EngineDead(reason))
        self.on_death(reason)

    def offer(self, request_id: str) -> Offer:
        rank = RankAddress(
            rank=0, host="127.0.0.1", port=1, layers=(0, 2), block_size=16, dtype="float32", bytes_per_token=10,
            transport="socket",
        )  # fmt: skip
        return Offer(request_id=request_id, secret=KEY, prompt_tokens=1, model_id="m", ranks=(rank,))

    def idle(self) -> bool:
        return not self.live

    def stats(self) -> EngineStats:
        return EngineStats(
            queued=0, running=len(self.live), holding=0, used_blocks=5, total_blocks=64, prompt_tokens=10,
            reused_tokens=4, finished=1, failed=0, waves=2, rounds=3, last_wave_age=0.5,
        )  # fmt: skip

    def describe(self) -> EngineDescription:
        rank = RankDescription(layers=2, kv_tokens=1024, bytes_per_token=10)
        return EngineDescription(role="prefill", dtype="float32", device="cpu", ranks=(rank,))

    def audit(self, timeout: float = 30.0) -> dict[str, Any]:
        return {"ranks": []}

    def dump_state(self) -> dict[str, Any]:
        return {"live": len(self.live)}

    def start_profile(self, path: Path | None, seconds: float) -> Path:
        return path or Path("/tmp/chosen.json")

    def stop_profile(self) -> dict[str, Any]:
        return {"path": "/tmp/p.json", "slices": 7, "silent_ranks": []}

    def clear(self) -> dict[str, Any]:
        return {"ranks": [{"rank": 0, "device": 3, "host": 0, "disk": 0, "held": 1}]}

    def _finish(self, request: PrefillRequest, future: Future[PrefillResult]) -> None:
        if self.live.pop(request.request_id, None) is None:
            return
        last = int.from_bytes(request.tokens[-4:], "little")
        wanted = request.sampling.logprobs
        first = SampledToken(last + 1)
        if wanted is not None:
            first = SampledToken(last + 1, -0.5, ((last + 1, -0.5),))
        timings = Timings(
            queued=0.001, admission=0.002, execution=0.003, total=0.006, stages=(StageTiming(0, 0.001),)
        )
        result = PrefillResult(
            request_id=request.request_id, first=first, prompt_tokens=request.prompt_tokens,
            reused_tokens=REUSED, timings=timings, trace=TRACE if request.traced else None,
        )  # fmt: skip
        future.set_result(result)
        if request.handoff and self.on_handed_off is not None:
            ranks = (RankHandedOff(0, "received", TRACE.answered + 0.1),)
            self.on_handed_off(HandedOff(request_id=request.request_id, answered=TRACE.answered, ranks=ranks))

    def _end(self, request_id: str, error: Exception) -> None:
        future = self.live.pop(request_id, None)
        if future is not None:
            future.set_exception(error)


class FakeBootstrap:
    """Remembers what each room was told, and lets a fake decode engine wait for it."""

    rooms: dict[int, FakeBootstrap.Room] = {}  # noqa: RUF012

    class Room:
        def __init__(self) -> None:
            self.settled = threading.Event()
            self.offer: Offer | None = None
            self.first: FirstToken | None = None
            self.failure: str | None = None
            self.failure_kind = "HandoffError"
            self.opened = self.abandoned = False

    key = KEY

    def __init__(self, host: str, port: int = 0, *, on_cancel: Callable[[Offer], None], keep: float) -> None:
        self.host, self.port, self.on_cancel = host, port or 4242, on_cancel
        self.closed = 0

    def secret(self, room: int) -> Secret:
        return self.key.for_room(room)

    @classmethod
    def room(cls, room: int) -> FakeBootstrap.Room:
        return cls.rooms.setdefault(room, cls.Room())

    def register(self, room: int, offer: Offer, *, hold: bool) -> None:
        assert hold, "decode must not take blocks for a prefill that has none"
        self.room(room).offer = offer

    def open(self, room: int) -> None:
        self.room(room).opened = True

    def finish(self, room: int, first: FirstToken) -> None:
        self.room(room).first = first
        self.room(room).settled.set()

    def fail(self, room: int, message: str) -> None:
        self.room(room).failure = message
        self.room(room).settled.set()

    def abandon(self, room: int) -> None:
        self.room(room).abandoned = True

    def awaited(self) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1


class FakeDecodeEngine:
    """Continues a room's first token by counting up, ``delay`` seconds a token."""

    delay = 0.002

    def __init__(self, config: Any, on_death: Any = None, on_step: Any = None) -> None:
        self.config, self.on_death, self.on_step = config, on_death, on_step
        self.why = lambda request_id=None: []
        self.info = SimpleNamespace(vocab_size=VOCABULARY, eos_token_ids=(257,), context_length=CONTEXT)
        self.max_model_len, self.total_blocks = CONTEXT, 64
        self.adapters = {each.partition("=")[0]: None for each in getattr(config, "lora_modules", ())}
        self.alive = True
        self.started = self.closed = 0
        self.requests: list[DecodeRequest] = []
        self.aborted: dict[str, threading.Event] = {}
        self._closing = threading.Event()

    def start(self) -> None:
        self.started += 1

    def close(self) -> None:
        self.closed += 1
        self._closing.set()

    def submit(self, request: DecodeRequest, on_output: Callable[[DecodeOutput], None]) -> None:
        self.requests.append(request)
        aborted = self.aborted[request.request_id] = threading.Event()
        threading.Thread(target=self._run, args=(request, on_output, aborted), daemon=True).start()

    def abort(self, request_id: str) -> None:
        self.aborted.setdefault(request_id, threading.Event()).set()

    def stats(self) -> DecodeStats:
        return DecodeStats(
            running=1, waiting=0, receiving=0, used_blocks=1, total_blocks=64, prompt_tokens_computed=0,
            kv_bytes_received=7, tokens_generated=9, steps=3, preemptions=0,
        )  # fmt: skip

    def describe(self) -> EngineDescription:
        rank = RankDescription(layers=2, kv_tokens=1024, bytes_per_token=10)
        return EngineDescription(role="decode", dtype="float32", device="cpu", ranks=(rank,))

    def audit(self, timeout: float = 30.0) -> dict[str, Any]:
        return {"capacity": 64, "free": 64}

    def _run(self, request: DecodeRequest, on_output: Any, aborted: threading.Event) -> None:
        def emit(**fields: Any) -> None:
            output = DecodeOutput(
                request_id=request.request_id, prompt_tokens=request.prompt_tokens, **fields
            )  # fmt: skip
            # As the engine does: who is gone, with the loop that would have read this, needs no answer.
            with contextlib.suppress(RuntimeError):
                on_output(output)

        if request.handoff is None:
            room = FakeBootstrap.Room()
            last = int.from_bytes(request.tokens[-4:], "little")
            room.first = FirstToken(first=SampledToken(last + 1), reused_tokens=0)
            room.settled.set()
        else:
            room = FakeBootstrap.room(request.handoff.room)
        while not room.settled.wait(0.01):
            if aborted.is_set():
                emit(finish_reason="cancelled")
                return
        if room.first is None:
            error = f"the prefill failed: {room.failure}"
            emit(finish_reason="error", error=error, error_kind=room.failure_kind)
            return
        token, reused = room.first.first.token, room.first.reused_tokens
        for step in range(request.max_tokens):
            if self._closing.is_set():
                error = "the engine was closed while the request was in flight"
                emit(finish_reason="error", error=error, error_kind="EngineDead")
                return
            if aborted.wait(self.delay):
                emit(finish_reason="cancelled", reused_tokens=reused)
                return
            last = step == request.max_tokens - 1
            stop = token + step in request.stop_token_ids
            wanted = request.sampling.logprobs
            sampled = SampledToken(token + step)
            if wanted is not None:
                best = tuple((token + step + place, -0.25 - place) for place in range(wanted))
                sampled = SampledToken(token + step, -0.25, best)
            reason = "stop" if stop else "length" if last else None
            arrived = ARRIVED if request.handoff is not None and not step else None
            emit(tokens=(sampled,), finish_reason=reason, reused_tokens=reused, arrived=arrived)
            if reason:
                return


class FakeFpmPublisher:
    """Stands in for Dynamo's publisher of forward passes; keeps what it is given."""

    def __init__(self, endpoint: Any, worker_id: str, dp_size: int = 1) -> None:
        self.worker_id = worker_id
        self.published: list[dict[str, Any]] = []
        self.open = True

    def publish(self, **numbers: Any) -> None:
        self.published.append(numbers)

    def shutdown(self) -> None:
        self.open = False
