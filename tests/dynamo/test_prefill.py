from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import InvalidArgument
from wavepp_worker.dynamo.bootstrap_info import HANDOFF_SCHEMA
from wavepp_worker.handoff.offer import FirstToken
from wavepp_worker.model.sampled_token import SampledToken

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    bootstrap_info,
    collect,
    prompt,
    reasons,
    run,
    started,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_prefill_announces_its_room_and_what_it_reused(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        request = prompt("prefill", bootstrap_info=bootstrap_info(77), output_options={"logprobs": 1})
        request["routing"] = {"cache_salt": "s"}
        (chunk,) = await collect(worker, request, Context("r1"))
        assert chunk["disaggregated_params"] == {
            "schema": HANDOFF_SCHEMA,
            "host": "127.0.0.1",
            "port": 4242,
            "room": 77,
            "secret": fakes.KEY.for_room(77).hex(),
        }
        assert chunk["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": fakes.REUSED}
        assert chunk["engine_data"]["kv_cache_hit"] == {
            "prompt_tokens": 3,
            "reused_tokens": fakes.REUSED,
        }
        assert chunk["log_probs"] == [-0.5]
        assert chunk["top_logprobs"] == [[{"rank": 1, "token_id": 4, "token": None, "logprob": -0.5}]]
        room = fakes.FakeBootstrap.room(77)
        assert room.offer is not None
        assert room.offer.request_id == "r1"
        assert room.first == FirstToken(first=SampledToken(4, -0.5, ((4, -0.5),)), reused_tokens=fakes.REUSED)
        (sent,) = worker._handler.engine.requests
        assert (sent.handoff, sent.salt) == (True, "s")

    run(check())


def test_prefill_chooses_a_room_if_the_frontend_did_not(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        chunks = [(await collect(worker, prompt("prefill"), Context(f"r{i}")))[0] for i in range(2)]
        rooms = {chunk["disaggregated_params"]["room"] for chunk in chunks}
        assert len(rooms) == 2
        assert all(fakes.FakeBootstrap.room(room).first is not None for room in rooms)

    run(check())


def test_a_refused_prefill_fails_its_room_too(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("prefill", text_model)
        with pytest.raises(InvalidArgument, match="outside the vocabulary"):
            await collect(worker, {"token_ids": [999], "bootstrap_info": bootstrap_info(5)}, Context("r"))
        assert "invalid request: token id 999" in (fakes.FakeBootstrap.room(5).failure or "")

    run(check())


def test_a_replayed_request_does_not_disturb_the_first(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.3)

    async def check() -> None:
        worker = await started("prefill", text_model)
        request = prompt("prefill", bootstrap_info=bootstrap_info(5))
        first = asyncio.create_task(collect(worker, request, Context("r")))
        await asyncio.sleep(0.05)
        with pytest.raises(InvalidArgument, match="in use"):
            await collect(worker, request, Context("r"))
        assert reasons(await first) == ["length"]
        assert fakes.FakeBootstrap.room(5).failure is None

    run(check())


def test_prefill_is_quiescent_only_when_nothing_is_held(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.FakePrefillEngine, "delay", 0.2)

    async def check() -> None:
        worker = await started("prefill", text_model)
        assert await worker.is_quiescent() is True
        work = asyncio.create_task(collect(worker, prompt("prefill"), Context("r")))
        await asyncio.sleep(0.05)
        assert await worker.is_quiescent() is False
        await work
        assert await worker.is_quiescent() is True

    run(check())
