from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import EngineShutdown
from wavepp_worker.errors import HandoffError

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    KINDS,
    collect,
    prompt,
    reasons,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_probes_need_no_other_worker(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        payload = await worker.health_check_payload()
        chunks = await collect(worker, payload, Context("probe"))
        assert reasons(chunks) == ["length"]
        assert fakes.FakeBootstrap.rooms == {}

    run(check())


def test_a_client_that_goes_away_takes_its_request_along(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)

    async def check() -> None:
        for which in KINDS:
            worker = await started(which, text_model)
            request = prompt(which, max_tokens=1000)
            stream = worker.generate(request, Context("r"))
            waiting = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await stream.aclose()
            await asyncio.sleep(0.05)
            if which != "decode":
                handler = worker._handler if which == "prefill" else worker._prefill
                assert "r" in handler.engine.aborted
                assert handler.engine.live == {}
            if which != "prefill":
                handler = worker._handler if which == "decode" else worker._decode
                assert handler.engine.aborted["r"].is_set()

    run(check())


def test_a_dying_engine_ends_requests_and_then_the_process(
    text_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wavepp_worker.dynamo import worker as worker_module

    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 10.0)
    left = asyncio.Event()

    class Endpoint:
        unregistered = 0

        async def unregister_endpoint_instance(self) -> None:
            self.unregistered += 1

    async def check() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(worker_module, "_leave", lambda: loop.call_soon_threadsafe(left.set))
        worker = await started("prefill", text_model)
        endpoint = Endpoint()
        await worker.on_endpoint_ready(endpoint)
        work = asyncio.create_task(collect(worker, prompt("prefill"), Context("r")))
        await asyncio.sleep(0.05)
        begin = time.monotonic()
        await asyncio.to_thread(worker._handler.engine.die, "rank 1 was ended by SIGKILL")
        with pytest.raises(EngineShutdown, match="rank 1"):
            await work
        with pytest.raises(EngineShutdown, match="rank 1"):
            await collect(worker, prompt("prefill"), Context("r2"))
        await asyncio.wait_for(left.wait(), 5)
        assert time.monotonic() - begin < 5
        assert endpoint.unregistered == 1
        assert worker._handler.engine.closed == 1

    run(check())
    assert "FATAL: the engine died: rank 1 was ended by SIGKILL" in capsys.readouterr().err


def test_controls(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        assert worker.supported_controls() == {"audit", "timings"}
        assert (await worker.engine_control("audit", {}))["status"] == "ok"
        await collect(worker, prompt(kind), Context("r"))
        timings = await worker.engine_control("timings", {"last": 4})
        assert len(timings["timings"]) == (0 if kind == "decode" else 1)
        assert (await worker.engine_control("timings", {"last": "x"}))["status"] == "error"
        assert (await worker.engine_control("other", {}))["status"] == "error"
        handler = worker._handler if kind != "agg" else worker._prefill

        def leak(timeout: float = 30.0) -> None:
            raise HandoffError("block 3 is held")

        handler.engine.audit = leak
        assert await worker.engine_control("audit", {}) == {
            "status": "error",
            "message": "HandoffError: block 3 is held",
        }

    run(check())
