from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from dynamo._core import Context
from wavepp_worker.errors import HandoffError
from wavepp_worker.serve.control import CONTROLS

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    collect,
    prompt,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


WHERE_PREFILLED = {"why", "clear_kv_blocks", "dump_state", "start_profile", "stop_profile"}


def test_controls(kind: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(kind, text_model)
        where_prefilled = set() if kind == "decode" else WHERE_PREFILLED
        everywhere = {"audit", "timings", "describe", "pause", "resume", "why"}
        assert worker.supported_controls() == everywhere | where_prefilled
        assert set(CONTROLS) == everywhere | WHERE_PREFILLED | {"remote_prefill"}
        assert (await worker.engine_control("audit", {}))["status"] == "ok"
        described = await worker.engine_control("describe", {})
        assert described["status"] == "ok"
        assert [engine["role"] for engine in described["engines"]] == (
            ["prefill", "decode"] if kind == "agg" else [kind]
        )
        claimed = "127.0.0.1:4242" if kind == "prefill" else None
        assert described["engines"][0]["bootstrap"] == claimed
        await collect(worker, prompt(kind), Context("r"))
        timings = await worker.engine_control("timings", {"last": 4})
        assert len(timings["timings"]) == (0 if kind == "decode" else 1)
        assert (await worker.engine_control("timings", {"last": "x"}))["status"] == "error"
        unknown = await worker.engine_control("timings", {"lst": 1})
        assert unknown == {
            "status": "error",
            "message": "lst: unknown; timings takes last, of how many requests",
        }
        refused = await worker.engine_control("other", {})
        assert refused["status"] == "error"
        assert refused["message"].startswith("there is no control 'other'; these are: audit, ")
        handler = worker._handler if kind != "agg" else worker._prefill

        def leak(timeout: float = 30.0) -> None:
            raise HandoffError("block 3 is held")

        handler.engine.audit = leak
        assert await worker.engine_control("audit", {}) == {
            "status": "error",
            "message": "HandoffError: block 3 is held",
        }

    run(check())


def test_whoever_waits_for_an_audit_takes_no_thread_from_others(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = threading.Event()
    monkeypatch.setattr(
        fakes.FakePrefillEngine, "audit", lambda *_: {"ranks": [quiet.wait(15)]}, raising=True
    )

    async def check() -> None:
        worker = await started("prefill", text_model)
        # More than there may be threads.
        audits = [asyncio.create_task(worker.engine_control("audit", {})) for _ in range(40)]
        await asyncio.sleep(0)
        dumped = await asyncio.wait_for(worker.engine_control("dump_state", {}), 5)
        assert dumped == {"status": "ok", "live": 0}
        quiet.set()
        assert await asyncio.gather(*audits) == [{"status": "ok", "ranks": [True]}] * 40
        await worker.cleanup()

    run(check())
