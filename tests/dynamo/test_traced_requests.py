"""A request's spans in each worker: below Dynamo's, with everything in them that an operator looks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dynamo._core import Context
from wavepp_worker.dynamo import worker as workers
from wavepp_worker.dynamo.tracer import installed
from wavepp_worker.errors import EngineDead

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import FakeEndpoint, bootstrap_info, collect, prompt, run, started
from tests.support.recorded_spans import ABOVE, HEADERS, TRACE_ID, Recorded

pytestmark = [
    pytest.mark.usefixtures("fake_engines"),
    pytest.mark.skipif(not installed(), reason="opentelemetry-sdk is not installed"),
]


class TracedContext:
    """Dynamo's, of a request that is traced: one that is made here has no headers."""

    def __init__(self, request_id: str) -> None:
        self._context = Context(request_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def trace_headers(self) -> dict[str, str]:
        return HEADERS


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(workers, "make_tracer", lambda environment: recorded.tracer)
    return recorded


async def ask(worker: Any, request: dict[str, Any]) -> None:
    context: Any = TracedContext("r1")
    await collect(worker, request, context)


async def ended(recorded: Recorded, *names: str) -> None:
    """The last of them comes from the engine's thread."""
    while not set(names) <= {span.name for span in recorded.spans()}:
        await asyncio.sleep(0.01)


def below(recorded: Recorded, name: str) -> set[str]:
    above = recorded.named(name).context.span_id
    return {
        span.name for span in recorded.spans() if span.parent is not None and span.parent.span_id == above
    }


def attributes(recorded: Recorded, name: str) -> dict[str, Any]:
    return dict(recorded.named(name).attributes)


def test_a_prefill_workers(text_model: Path, recorded: Recorded) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        await worker.on_endpoint_ready(FakeEndpoint())
        await ask(worker, prompt("prefill", bootstrap_info=bootstrap_info(77)))
        await ended(recorded, "wavepp.handoff.offered")
        await worker.cleanup()

    run(check())
    whole = recorded.named("wavepp.prefill")
    assert (whole.context.trace_id, whole.parent.span_id) == (TRACE_ID, ABOVE)
    assert attributes(recorded, "wavepp.prefill") == {
        "wavepp.request_id": "r1",
        "wavepp.replica": "7",
        "wavepp.prompt_tokens": 3,
        "wavepp.reused_tokens": fakes.REUSED,
        "wavepp.ranks": 1,
        "wavepp.waves": 1,
    }
    assert below(recorded, "wavepp.prefill") == {"wavepp.admission", "wavepp.wave", "wavepp.handoff.offered"}
    assert attributes(recorded, "wavepp.wave")["wavepp.wave_id"] == 5
    assert attributes(recorded, "wavepp.handoff.offered")["wavepp.bytes"] == 30
    assert attributes(recorded, "wavepp.handoff.rank")["wavepp.rank"] == 0


def test_a_decode_workers(text_model: Path, recorded: Recorded) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        await ask(worker, prompt("decode", max_tokens=2))
        await worker.cleanup()

    run(check())
    assert recorded.named("wavepp.decode").parent.span_id == ABOVE
    assert below(recorded, "wavepp.decode") == {"wavepp.handoff.received"}
    assert attributes(recorded, "wavepp.decode")["wavepp.outcome"] == "length"
    assert attributes(recorded, "wavepp.handoff.received")["wavepp.bytes"] == 40


def test_a_worker_that_does_both(text_model: Path, recorded: Recorded) -> None:
    async def check() -> None:
        worker = await started("agg", text_model)
        await ask(worker, prompt("agg", max_tokens=2))
        await ended(recorded, "wavepp.handoff.offered")
        await worker.cleanup()

    run(check())
    for name in ("wavepp.prefill", "wavepp.decode"):
        assert recorded.named(name).parent.span_id == ABOVE


def test_a_prefill_that_fails(text_model: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise EngineDead("rank 1 is gone")

    monkeypatch.setattr(fakes.FakePrefillEngine, "submit", fails)

    async def check() -> None:
        worker = await started("prefill", text_model)
        with pytest.raises(Exception, match="rank 1 is gone"):
            await ask(worker, prompt("prefill"))
        await worker.cleanup()

    run(check())
    failed = recorded.named("wavepp.prefill")
    assert not failed.status.is_ok
    assert failed.status.description == "EngineDead: rank 1 is gone"
