from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from dynamo._core import Context
from wavepp_worker.decode.whereabouts import Whereabouts as InDecode
from wavepp_worker.errors import EngineDead
from wavepp_worker.intake.queued_job import QueuedJob
from wavepp_worker.runtime.protocol.whereabouts import Whereabouts

from tests.support.dynamo_workers import collect, prompt, run, started

pytestmark = pytest.mark.usefixtures("fake_engines")


@pytest.mark.parametrize("which", ["prefill", "agg"])
def test_a_replica_is_cleared_dumped_and_profiled(which: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(which, text_model)
        cleared = await worker.engine_control("clear_kv_blocks", {})
        assert cleared == {
            "status": "ok",
            "ranks": [{"rank": 0, "device": 3, "host": 0, "disk": 0, "held": 1}],
        }
        assert await worker.engine_control("dump_state", {}) == {"status": "ok", "live": 0}
        begun = await worker.engine_control("start_profile", {"seconds": 3, "path": "/tmp/p.json"})
        assert begun == {"status": "ok", "path": "/tmp/p.json", "seconds": 3.0}
        assert (await worker.engine_control("stop_profile", {}))["slices"] == 7
        for body, sentence in (
            ({"seconds": 301}, "seconds=301 should be a number of seconds from 0 to 300"),
            ({"path": 3}, "path=3 should be a text"),
            (
                {"to": "x"},
                "to: unknown; start_profile takes seconds, how long at most and path, of a new file on",
            ),
        ):
            assert (await worker.engine_control("start_profile", body))["message"].startswith(sentence)
        assert (await worker.engine_control("clear_kv_blocks", {"all": 1}))["message"] == (
            "all: unknown; clear_kv_blocks takes nothing"
        )

    run(check())


@pytest.mark.parametrize("which", ["prefill", "agg"])
def test_a_replica_says_why_a_request_waits_under_all_of_its_names(which: str, text_model: Path) -> None:
    async def check() -> None:
        worker = await started(which, text_model)
        handler = worker._handler if which == "prefill" else worker._prefill
        request_id = "d6415c17-e214-4dfe-a63c-97c89e84501e"
        asked: list[str | None] = []

        def why(name: str | None = None) -> list[Whereabouts]:
            asked.append(name)
            known = name in (None, request_id)
            return [Whereabouts(request_id=request_id, state="queued", sentence="waits")] if known else []

        handler.engine.why = why
        for body in ({}, {"request_id": request_id}, {"request_id": f"chatcmpl-{request_id}"}):
            answer = await worker.engine_control("why", body)
            assert answer["status"] == "ok"
            [found] = answer["requests"]
            assert (found["request_id"], found["state"], found["sentence"]) == (request_id, "queued", "waits")
        assert asked == [None, request_id, f"chatcmpl-{request_id}", request_id]
        handler.engine.why = lambda name: []
        await collect(worker, prompt(which), Context("ended"))
        [over] = (await worker.engine_control("why", {"request_id": "ended"}))["requests"]
        assert over["state"] == "over"
        [unknown] = (await worker.engine_control("why", {"request_id": "never"}))["requests"]
        assert unknown["state"] == "unknown"
        assert await worker.engine_control("why", {"request_id": 7}) == {
            "status": "error",
            "message": "request_id=7 should be a text",
        }
        empty = await worker.engine_control("why", {"request_id": " "})
        assert empty["message"].startswith("request_id is empty; give one, or leave it out")

        assert await worker.engine_control("why", {"id": "a"}) == {
            "status": "error",
            "message": "id: unknown; why takes request_id, or nothing",
        }

        def dead(name: str) -> list[Whereabouts]:
            raise EngineDead("rank 1 died")

        handler.engine.why = dead
        assert await worker.engine_control("why", {"request_id": "a"}) == {
            "status": "error",
            "message": "EngineDead: rank 1 died",
        }

    run(check())


def test_a_decode_worker_says_where_its_requests_are(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        asked: list[str | None] = []

        def why(name: str | None = None) -> list[InDecode]:
            asked.append(name)
            here = InDecode(
                request_id="a",
                state="running",
                sentence="has 1",
                seconds=2.0,
                prompt_tokens=3,
                generated=1,
                priority=0,
            )
            return [here] if name in (None, "a") else []

        worker._handler.engine.why = why
        for body in ({}, {"request_id": "cmpl-a"}):
            (told,) = (await worker.engine_control("why", body))["requests"]
            assert (told["request_id"], told["sentence"], told["seconds"]) == ("a", "has 1", 2.0)
        assert (await worker.engine_control("why", {"request_id": "b"}))["requests"] == []
        assert asked == [None, "cmpl-a", "a", "b"]
        assert "should be a text" in (await worker.engine_control("why", {"request_id": 5}))["message"]

    run(check())


def test_a_prefill_worker_that_takes_jobs_says_of_one_that_is_still_in_the_queue(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        worker._handler.engine.why = lambda name=None: []
        job = QueuedJob(request_id="a", state="in the queue", sentence="is in the queue", seconds=1.0)
        worker._intake = SimpleNamespace(
            queued=lambda name: job if name == "a" else None,
            queue=lambda: {"wavepp.a.m": 3},
            stop_taking=lambda: None,
            idle=lambda: True,
        )
        assert (await worker.engine_control("why", {}))["jobs_queued"] == {"wavepp.a.m": 3}
        (told,) = (await worker.engine_control("why", {"request_id": "cmpl-a"}))["requests"]
        assert told == msgspec.to_builtins(job)
        (unknown,) = (await worker.engine_control("why", {"request_id": "b"}))["requests"]
        assert unknown["state"] == "unknown"
        worker._handler.engine.why = lambda name=None: [
            Whereabouts(request_id="a", state="queued", sentence="waits here")
        ]
        (here,) = (await worker.engine_control("why", {"request_id": "a"}))["requests"]
        assert here["sentence"] == "waits here"

    run(check())
