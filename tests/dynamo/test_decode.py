from __future__ import annotations

from pathlib import Path

import pytest
from dynamo._core import Context
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument, Unknown
from wavepp_worker.dynamo.bootstrap_info import HANDOFF_SCHEMA

from tests.support import fake_engines as fakes
from tests.support.dynamo_workers import (
    collect,
    prompt,
    reasons,
    run,
    started,
    tokens,
)

pytestmark = pytest.mark.usefixtures("fake_engines")


def test_decode_reports_the_reuse_on_its_first_and_last_chunk(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        chunks = await collect(worker, prompt("decode", output_options={"logprobs": 2}), Context("r"))
        usages = [chunk["completion_usage"] for chunk in (chunks[0], chunks[-1])]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [fakes.REUSED] * 2
        assert usages[1]["completion_tokens"] == 4
        assert all(len(chunk["log_probs"]) == len(chunk["token_ids"]) for chunk in chunks)
        assert [entry["token_id"] for entry in chunks[1]["top_logprobs"][0]] == [5, 6]

    run(check())


def test_decode_prefills_what_the_router_has_it_prefill(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", annotations=["x-bypass-remote-prefill"])
        del request["bootstrap_info"]
        assert tokens(await collect(worker, request, Context("r"))) == [4, 5, 6, 7]
        (submitted,) = worker._handler.engine.requests
        assert submitted.handoff is None
        with pytest.raises(InvalidArgument, match="no prefill worker has seen"):
            await collect(worker, {**request, "annotations": []}, Context("r2"))

    run(check())


def test_decode_finds_the_room_in_a_prefill_result(text_model: Path) -> None:
    """S46: without one, as a router may send on a fresh deployment, it is refused with a sentence."""

    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", room=3)
        del request["bootstrap_info"]
        params = {"schema": HANDOFF_SCHEMA, "host": "127.0.0.1", "port": 1, "room": 3}
        params["secret"] = fakes.KEY.for_room(3).hex()
        chunks = await collect(
            worker, {**request, "prefill_result": {"disaggregated_params": params}}, Context("r")
        )
        assert tokens(chunks) == [4, 5, 6, 7]
        other = {"disaggregated_params": {**params, "schema": "x.v9"}}
        with pytest.raises(InvalidArgument, match=r"schema 'x\.v9'"):
            await collect(worker, {**request, "prefill_result": other}, Context("r2"))
        with pytest.raises(InvalidArgument, match="no prefill worker has seen"):
            await collect(worker, request, Context("r3"))

    run(check())


def test_stop_tokens_reach_the_engine_and_end_the_answer(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", max_tokens=50)
        request["stop_conditions"]["stop_token_ids"] = [6]
        chunks = await collect(worker, request, Context("r"))
        assert (tokens(chunks), reasons(chunks)) == ([4, 5, 6], ["stop"])

    run(check())


def test_stop_strings_are_cut_out_of_the_text(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        # Ids 4, 5, 6, 7, … of the byte alphabet in sorted order are "%&'(".
        request = prompt("decode", max_tokens=50, output_options={"logprobs": 1})
        request["stop_conditions"]["stop"] = ["'("]
        chunks = await collect(worker, request, Context("r"))
        assert "".join(chunk["text"] for chunk in chunks) == "%&"
        assert reasons(chunks) == ["stop"]
        assert tokens(chunks) == [4, 5, 6, 7]
        assert chunks[-1]["tokens"] == ["("]
        assert chunks[-1]["top_logprobs"][0][0]["token"] == "("
        assert worker._handler.engine.aborted["r"].is_set()

    run(check())


def test_decode_maps_what_prefill_says(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        request = prompt("decode", room=8)
        room = fakes.FakeBootstrap.room(8)
        room.first, room.failure = None, "rank 1 ran out of patience"
        with pytest.raises(Unknown, match="HandoffError: the prefill failed: rank 1"):
            await collect(worker, request, Context("r"))
        room.failure = "invalid request: too long, shorten it"
        with pytest.raises(InvalidArgument, match=r"^too long, shorten it$"):
            await collect(worker, request, Context("r2"))

    run(check())


def test_probes_fail_on_a_dead_decode_engine(text_model: Path) -> None:
    async def check() -> None:
        worker = await started("decode", text_model)
        worker._handler.engine.alive = False
        with pytest.raises(EngineShutdown):
            await collect(worker, await worker.health_check_payload(), Context("probe"))

    run(check())
